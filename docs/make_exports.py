"""Writes docs/exports.md: every catalogue model on three clusters, exported to every target, or why not.

``python docs/make_exports.py [MODEL ...]``: the plan is the proven optimum of its space (decode at context 4096,
bfloat16, and fp8 where bfloat16 does not fit); where a target cannot express it, the nearest plan that it can, and its
predicted loss. Every export named in the table was written, so its flags are on the recorded lists.
"""

import re
import sys
import time
from pathlib import Path

from autoshard.api.build_plan import build_plan
from autoshard.api.export import judge_of, legality, nearest_strategy, plan_of
from autoshard.api.models import graph_of, source_of, written_source
from autoshard.api.plan import Plan
from autoshard.api.solve import make_simulator, solve
from autoshard.catalogue import entries
from autoshard.errors import AutoshardError, NoFeasiblePlanError
from autoshard.export import TARGETS
from autoshard.hardware import parse_cluster
from autoshard.sharding import Degrees
from autoshard.simulator import Simulator
from autoshard.workload import Workload

CLUSTERS = ("H100x8", "H100x16", "H100x64")

HEAD = """# Exports

Made by `python docs/make_exports.py`: do not edit. Each cell is an export (written, its flags checked against the
recorded lists) or a refusal. `=`: the plan itself. Degrees: the nearest plan that the target can express, with its
predicted change of tokens/s/GPU and, in brackets, why it is not the plan itself (numbered below). `-`: nothing that the
target can express is feasible. Plans are the proven optimum for decode at context 4096, in bfloat16, or fp8 (marked)
where that does not fit. Predictions, not measurements.

"""


def degrees_text(d: Degrees) -> str:
    """Short."""
    parts = [f"{n}{getattr(d, n)}" for n in ("pp", "dp", "tp", "ep", "etp") if getattr(d, n) > 1]
    return f"{' '.join(parts) or 'one GPU'} b{d.batch}" + (f" x{d.replicas}" if d.replicas > 1 else "")


class Legend:
    """Reasons, numbered as they come."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def mark(self, reason: str) -> str:
        """The number of a kind of reason: its text without the values."""
        kind = "it has no switch per operator" if reason.startswith("it has no switch") else re.sub(r"\d+", "n", reason)
        kind = re.sub(r"\b[\w/]+_?layers[\w]*/\w+\b", "an operator", kind)
        return str(self.numbers.setdefault(kind, len(self.numbers) + 1))


def cell(plan: Plan, simulator: Simulator, target: str, legend: Legend) -> str:
    """What one target makes of a plan."""
    judge = judge_of(target, plan.graph, parse_cluster(plan.data.cluster.name), plan.data.workload.dtype)
    reasons = legality(target, plan.graph, plan.strategy, judge)
    try:
        if not reasons:
            TARGETS[target].write(plan.data)
            return "="
        marks = ",".join(dict.fromkeys(legend.mark(r) for r in reasons[:3]))
        found = nearest_strategy(simulator, target)
        if found is None:
            return f"- [{marks}]"
        TARGETS[target].write(plan_of(plan, found.strategy, simulator.cluster).data)
    except AutoshardError as error:
        return f"- [{legend.mark(str(error))}]"
    return f"{degrees_text(found.strategy.degrees)} ({-100 * found.loss(plan):+.1f} %) [{marks}]"


def rows(model: str, legend: Legend) -> list[str]:
    """Lines of one model."""
    source = source_of(model)
    graph = graph_of(model, source)
    found = []
    for name in CLUSTERS:
        start = time.process_time()
        cluster = parse_cluster(name)
        plan, simulator, dtype, why = None, None, "", ""
        for dtype in ("bf16", "fp8"):
            try:
                simulator = make_simulator(graph, cluster, Workload(dtype=dtype))
                plan = Plan(build_plan(solve(simulator, algorithm="exact"), written_source(source)))
                break
            except NoFeasiblePlanError as error:
                why = str(error)
        if plan is None or simulator is None:
            found.append(f"| {model} | {name} | no plan in bf16 or fp8: {why} | | | | | | | |")
            continue
        cells = [cell(plan, simulator, t, legend) for t in ("vllm", "sglang", "trtllm", "megatron", "transformers")]
        shown = degrees_text(plan.degrees) + (" fp8" if dtype == "fp8" else "")
        rate = f"{plan.predicted.tokens_per_s_per_gpu:.0f}"
        cells.append(cell(plan, simulator, "dtensor", legend))
        found.append(f"| {model} | {name} | {shown} | {rate} | {' | '.join(cells)} |")
        print(found[-1], f"{time.process_time() - start:.1f} s", file=sys.stderr, flush=True)
    return found


def write(lines: list[str], legend: Legend) -> None:
    """The page, from the rows so far."""
    versions = "\n".join(f"- `{name}`: written for {t.version}" for name, t in TARGETS.items())
    columns = "model | cluster | plan | tokens/s/GPU | vllm | sglang | trtllm | megatron | transformers | dtensor"
    table = f"| {columns} |\n|{'---|' * 10}\n" + "\n".join(lines)
    why = "\n".join(f"{n}. {text}" for text, n in legend.numbers.items())
    out = Path(__file__).parent / "exports.md"
    out.write_text(f"{HEAD}{versions}\n\n{table}\n\n## Why not the plan itself\n\n{why}\n", encoding="utf-8")


def main() -> None:
    """Make the table, model by model, so that a long run can be watched."""
    legend = Legend()
    lines: list[str] = []
    for model in sys.argv[1:] or [e.name for e in entries()]:
        try:
            lines += rows(model, legend)
        except AutoshardError as error:
            lines.append(f"| {model} | all | cannot be planned: {error} | | | | | | | |")
        write(lines, legend)


if __name__ == "__main__":
    main()
