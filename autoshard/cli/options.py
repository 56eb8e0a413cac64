"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL", help="A name of `autoshard models`, a config.json or its folder, or package.module:factory."
    ),
]
Cluster = Annotated[str, typer.Option(help="<DEVICE>x<COUNT>, or a YAML file.")]
Phase = Annotated[str, typer.Option(help="decode, prefill or serve (both at once, at steady state).")]
Context = Annotated[int, typer.Option(help="Tokens in the KV cache of a sequence.")]
Isl = Annotated[int | None, typer.Option(help="Tokens of a prompt (prefill, serve).")]
Osl = Annotated[int | None, typer.Option(help="Tokens of an answer (serve).")]
Concurrency = Annotated[
    int | None, typer.Option(help="Requests in flight over the whole cluster (serve); searched by default.")
]
Engine = Annotated[
    str | None, typer.Option(help="Whose kernels and host: vllm, sglang, trtllm, or a version, vllm==0.12 (serve).")
]
TtftMs = Annotated[float | None, typer.Option(help="Limit on the time to the first token (prefill, serve).")]
TpotMs = Annotated[float | None, typer.Option(help="Limit on the time per output token (decode, serve).")]
Dtype = Annotated[str, typer.Option(help="Of weights and matrix products: bf16, fp8, ...")]
KvDtype = Annotated[str, typer.Option(help="Of the KV cache.")]
Effects = Annotated[
    str | None,
    typer.Option(help="Costs that are not additive: overlap, two-batch, contention, skew, or all (decode, prefill)."),
]
Fix = Annotated[str | None, typer.Option(help="Degrees to hold: tp=8,ep=8 (pp dp tp ep etp batch replicas).")]
Pin = Annotated[
    str | None,
    typer.Option(
        help="Choices to hold: q=0,o=1,layers/k=none (0 output, 1 contracted, none replicated); residual, dispatch too."
    ),
]
Stages = Annotated[
    str | None, typer.Option(help="Layers of every pipeline stage: 20,12, or even (balanced by default).")
]
AllowUneven = Annotated[
    bool, typer.Option("--allow-uneven", help="Fill up heads and widths that do not divide with zeros.")
]
Budget = Annotated[int, typer.Option(help="Simulator calls that a search may use.")]
Collectives = Annotated[
    str, typer.Option(help="fastest of the library's and engines' own per edge, or library (NCCL's own choice) alone.")
]
Space = Annotated[
    str | None, typer.Option(help="Search a part of the wider space as well (kv-sequence); such plans do not run yet.")
]
State = Annotated[
    Path | None,
    typer.Option(help="Keep what was searched in this file; an interrupted search continues there to the same result."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout, and nothing else there.")]

CLUSTER = "H100x64"
