"""Writes docs/models.md: every model of the catalogue, and any configs given, as the tracer sees them.

``python docs/make_models.py [CONFIG.json ...]`` traces each from its real definition at full size. Times are CPU
seconds of building and tracing on the machine that ran it.
"""

import sys
import time
from pathlib import Path

from autoshard.api.models import graph_of, source_of
from autoshard.catalogue import entries
from autoshard.errors import AutoshardError
from autoshard.ir import OpGraph

HEAD = """# Models

Made by `python docs/make_models.py`: do not edit. Parameters are the text decoder's, counted from its real class.
FLOPs are per token without attention's part, two per multiply-add, as a serving engine spends them; KV bytes per
token over all layers in bfloat16, before any window, keys that are the values once; state bytes per sequence. Opaque is
the largest of the shares of FLOPs and of parameters that the tracer does not understand. Trace is CPU seconds for
building and tracing at full size.

| model | class | parameters | active | GFLOP/token | KV B/token | state B/seq. | kinds of block | opaque | trace s |
|---|---|---:|---:|---:|---:|---:|---|---:|---:|
"""


def row(name: str, graph: OpGraph, seconds: float) -> str:
    """One line of the table."""
    flops = graph.flops(1.0)
    opaque = [(b.repeat, op) for b, op in graph.all_ops() if op.kind == "opaque"]
    share = max(
        sum(n * op.flops(1.0) for n, op in opaque) / flops,
        sum(n * op.num_parameters for n, op in opaque) / graph.num_parameters,
    )
    blocks = ", ".join(f"{b.repeat} {b.name}" for b in graph.blocks)
    cells = [
        name,
        graph.model_class,
        f"{graph.num_parameters:,}",
        f"{graph.num_active_parameters / 1e9:.2f} B",
        f"{flops / 1e9:.2f}",
        f"{graph.kv_bytes_per_token():,.0f}",
        f"{graph.state_bytes_per_sequence():,.0f}",
        blocks,
        f"{share:.3%}" if share else "0",
        f"{seconds:.1f}",
    ]
    return f"| {' | '.join(cells)} |\n"


def main() -> None:
    """Trace everything and write the file."""
    out = Path(__file__).parent / "models.md"
    given = sys.argv[1:]
    lines = []
    for model in [*(e.name for e in entries()), *given]:
        start = time.process_time()
        try:
            source = source_of(model)
            lines.append(row(source.name, graph_of(model, source), time.process_time() - start))
        except AutoshardError as error:
            lines.append(f"| {Path(model).stem} | {error} | | | | | | | | |\n")
        print(lines[-1], end="", file=sys.stderr, flush=True)
    out.write_text(HEAD + "".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
