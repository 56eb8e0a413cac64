"""Writes docs/exports.md: every catalogue model on three clusters, exported to every target, or why not.

``python docs/make_exports.py [--again TARGET,...] [MODEL ...]``: the plan is the proven optimum of its space (decode at
context 4096, bfloat16, or fp8 where bfloat16 does not fit); where a target cannot express it, the nearest plan that it
can, and its predicted loss. Every export named in the table was written, so its flags are on the recorded lists.

A row is kept in ``results/exports.jsonl`` as soon as it is made, and made only once: a run that is stopped goes on
where it was. Rows of MODELs named are made again, with ``--again`` the cells of these targets only. A model is traced
once, searched once a cluster.
"""

import argparse
import json
import re
import sys
import time
from pathlib import Path
from typing import Any

from autoshard import catalogue
from autoshard.api.build_plan import build_plan
from autoshard.api.engine_rules import engine_rules
from autoshard.api.export import loss_of, plan_of
from autoshard.api.models import graph_of, source_of, written_source
from autoshard.api.nearest import legality, nearest_strategy
from autoshard.api.plan import Plan
from autoshard.api.solve import make_simulator, solve
from autoshard.errors import AutoshardError, NoFeasiblePlanError
from autoshard.export import TARGETS
from autoshard.hardware import parse_cluster
from autoshard.ir import OpGraph
from autoshard.sharding import Degrees
from autoshard.simulator import Simulator
from autoshard.workload import Workload

CLUSTERS = ("H100x8", "H100x16", "H100x64")
COLUMNS = ("vllm", "sglang", "trtllm", "megatron", "transformers", "dtensor")
HERE = Path(__file__).parent
ROWS = HERE / "results" / "exports.jsonl"
MOST_REASONS = 3

HEAD = """# Exports

Made by `python docs/make_exports.py`: do not edit. Each cell is an export (written, its flags checked against the
recorded lists) or a refusal. `=`: the plan itself. Degrees: the nearest plan that the target can express, with its
predicted change of tokens/s/GPU and, in brackets, why it is not the plan itself (numbered below). `-`: nothing that the
target can express is feasible: why not the plan, and after the bar why nothing else. Plans are the proven optimum for
decode at context 4096, in bfloat16, or fp8 (marked) where that does not fit. Predictions, not measurements.

"""

Row = dict[str, Any]


def degrees_text(d: Degrees) -> str:
    """Short."""
    parts = [f"{n}{getattr(d, n)}" for n in ("pp", "dp", "tp", "ep", "etp") if getattr(d, n) > 1]
    return f"{' '.join(parts) or 'one GPU'} b{d.batch}" + (f" x{d.replicas}" if d.replicas > 1 else "")


def best_plan(graph: OpGraph, cluster: str, source: Any) -> tuple[Plan, Simulator, str] | str:
    """The best plan, in bf16 if it fits; else why there is none."""
    why = ""
    for dtype in ("bf16", "fp8"):
        try:
            simulator = make_simulator(graph, parse_cluster(cluster), Workload(dtype=dtype))
            return Plan(build_plan(solve(simulator, algorithm="exact"), written_source(source))), simulator, dtype
        except NoFeasiblePlanError as error:
            why = str(error)
    return why


def cell(plan: Plan, simulator: Simulator, target: str) -> Row:
    """What one target makes of a plan: whether it is the plan itself, or the degrees and the change, and why."""
    rules = engine_rules(target, plan.graph, simulator.cluster, simulator.workload)
    reasons = legality(target, plan.graph, plan.strategy, rules)[:MOST_REASONS]
    try:
        if not reasons:
            TARGETS[target].write(plan.data)
            return {"same": True}
        found = nearest_strategy(simulator, target)
        if found.strategy is None:
            return {"reasons": reasons, "why_none": found.why_none}
        TARGETS[target].write(plan_of(plan, found.strategy, simulator.cluster).data)
    except AutoshardError as error:
        return {"reasons": [*reasons, str(error)], "why_none": ""}
    return {"reasons": reasons, "degrees": degrees_text(found.strategy.degrees), "change": -loss_of(found, plan)}


def make_row(model: str, cluster: str, graph: OpGraph, source: Any, targets: tuple[str, ...], before: Row) -> Row:
    """A row; cells of other targets are those of ``before``."""
    found = best_plan(graph, cluster, source)
    row: Row = {"model": model, "cluster": cluster}
    if isinstance(found, str):
        return {**row, "why": found}
    plan, simulator, dtype = found
    cells = before.get("cells", {}) | {t: cell(plan, simulator, t) for t in targets}
    rate = plan.predicted.tokens_per_s_per_gpu
    return {**row, "plan": degrees_text(plan.degrees), "dtype": dtype, "rate": rate, "cells": cells}


def read_rows() -> dict[tuple[str, str], Row]:
    """Rows made so far; of two of one model and cluster, the later."""
    lines = ROWS.read_text(encoding="utf-8").splitlines() if ROWS.exists() else []
    return {(r["model"], r["cluster"]): r for r in map(json.loads, lines)}


class Legend:
    """Reasons, numbered as they come."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def marks(self, reasons: list[str]) -> str:
        """The numbers of kinds of reasons: their texts without the values."""
        return ",".join(dict.fromkeys(str(self._number(r)) for r in reasons))

    def _number(self, reason: str) -> int:
        kind = "it has no switch per operator" if reason.startswith("it has no switch") else reason
        kind = re.sub(r"\b(?!model/)[\w.*]+/[\w.*]+\b", "an operator", kind)
        kind = re.sub(r"\d+(\.\d+)?(,\d+)*", "n", kind)
        return self.numbers.setdefault(kind, len(self.numbers) + 1)


def shown(c: Row, legend: Legend) -> str:
    """A cell."""
    if c.get("same"):
        return "="
    marks = legend.marks(c["reasons"])
    if "degrees" in c:
        return f"{c['degrees']} ({100 * c['change']:+.1f} %) [{marks}]"
    none = f"\\|{legend.marks([c['why_none']])}" if c["why_none"] else ""
    return f"- [{marks}{none}]"


def page(rows: dict[tuple[str, str], Row]) -> str:
    """The document, in the catalogue's order."""
    legend, lines = Legend(), []
    for model, cluster in ((e.name, c) for e in catalogue.entries() for c in CLUSTERS):
        row = rows.get((model, cluster))
        if row is None:
            continue
        if "why" in row:
            lines.append(f"| {model} | {cluster} | no plan in bf16 or fp8: {row['why']} |{' |' * (len(COLUMNS) + 1)}")
            continue
        cells = " | ".join(shown(row["cells"][t], legend) for t in COLUMNS if t in row["cells"])
        dtype = " fp8" if row["dtype"] == "fp8" else ""
        lines.append(f"| {model} | {cluster} | {row['plan']}{dtype} | {row['rate']:.0f} | {cells} |")
    versions = "\n".join(f"- `{name}`: written for {t.version}" for name, t in TARGETS.items())
    columns = " | ".join(("model", "cluster", "plan", "tokens/s/GPU", *COLUMNS))
    table = f"| {columns} |\n|{'---|' * (4 + len(COLUMNS))}\n" + "\n".join(lines)
    why = "\n".join(f"{n}. {text}" for text, n in legend.numbers.items())
    return f"{HEAD}{versions}\n\n{table}\n\n## Why not the plan itself\n\n{why}\n"


def make(model: str, rows: dict[tuple[str, str], Row], targets: tuple[str, ...], *, again: bool) -> None:
    """The rows of one model that are not there, or all ``again``; each is kept at once."""
    missing = [c for c in CLUSTERS if again or not set(targets) <= set(rows.get((model, c), {}).get("cells", targets))]
    missing += [c for c in CLUSTERS if (model, c) not in rows and c not in missing]
    if not missing:
        return
    graph: OpGraph | str
    try:
        source = source_of(model)
        graph = graph_of(model, source)
    except AutoshardError as error:
        graph = f"cannot be traced: {error}"
    for cluster in missing:
        start = time.process_time()
        if isinstance(graph, str):
            row = {"model": model, "cluster": cluster, "why": graph}
        else:
            row = make_row(model, cluster, graph, source, targets, rows.get((model, cluster), {}))
        rows[model, cluster] = row
        with ROWS.open("a", encoding="utf-8") as out:
            out.write(json.dumps(row) + "\n")
        print(model, cluster, f"{time.process_time() - start:.1f} s", file=sys.stderr, flush=True)


def main() -> None:
    """Make what is missing, model by model, then the page."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--again", default="", help="targets whose cells are made again, apart by commas")
    parser.add_argument("models", nargs="*")
    asked = parser.parse_args()
    rows = read_rows()
    targets = tuple(filter(None, asked.again.split(","))) or COLUMNS
    for model in asked.models or [e.name for e in catalogue.entries()]:
        make(model, rows, targets, again=bool(asked.again or asked.models))
    rows = read_rows()  # another run may have added some
    ordered = [rows[m, c] for m, c in ((e.name, c) for e in catalogue.entries() for c in CLUSTERS) if (m, c) in rows]
    ROWS.write_text("".join(json.dumps(row) + "\n" for row in ordered), encoding="utf-8")
    (HERE / "exports.md").write_text(page(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
