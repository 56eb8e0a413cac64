"""Writes ``docs/results/search.md``: ``python -m benchmarks.paper.search_page [RESULTS]``.

RESULTS are lines of ``python -m benchmarks.paper.run --set catalogue`` (build/catalogue.jsonl). What the page says is
kept beside it, without the histories, so that a later run can add to it: ``docs/results/search.jsonl``.
"""

import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.paper.identity import Sorted, cost_models, described, sort_out
from benchmarks.paper.page import DOCS, depends
from benchmarks.paper.points import BUDGET, CATALOGUE, METHODS, TUNED_ON
from benchmarks.paper.run import read
from benchmarks.paper.tables import Runs, grouped, percent

RESULTS = Path("build/catalogue.jsonl")
KEPT = DOCS / "search.jsonl"
TUNED = {p.name: p.tuned for p in CATALOGUE}
HALVES = ((True, "tuned on"), (False, "held out"))
MEDIAN_TARGET, WORST_TARGET = 1e-3, 1e-2

HEAD = f"""# How near each search comes to the optimum

Made by `python -m benchmarks.paper.search_page`: do not edit. Every figure is a **prediction of the simulator**. All
searches share the space, its exact masks, the evaluation and a budget of {BUDGET:,} calls, counted by the problem
itself; a strategy asked for again costs no call. The optimum is proven by `exact`, of which no search reads anything.
Regret is `1 - rate / optimum`, in per cent.

Heuristics: `rl` starts from no heuristic strategy. Its mutations and last sweeps know that the fifth component is a
batch, and try the largest that fits; this costs calls like any other strategy. `megatron` holds Megatron's choices
(each layout of the residual, tokens gathered and exchanged) and tries all degrees, so it has one run and its own,
larger number of calls. `anneal` and `mcmc` propose by the same moves and masks as `rl`'s mutations.

Settings were chosen on toy problems and on models of the first half alone. That half is
{", ".join(TUNED_ON[:8])},
{", ".join(TUNED_ON[8:])}.
"""


def half_table(runs: Runs, methods: Sequence[str]) -> Iterator[str]:
    """Regret over all runs of each half and setting."""
    yield "| half | setting | method | models | runs | median % | worst % | runs within 0.1 % | most calls |"
    yield "|---|---|---|---:|---:|---:|---:|---:|---:|"
    settings = list(dict.fromkeys((p.cluster, p.label) for p in CATALOGUE))
    for half, label in HALVES:
        for where in (None, *settings):
            names = [p.name for p in CATALOGUE if p.tuned is half and where in (None, (p.cluster, p.label))]
            for method in methods:
                by_point = [runs[n, "method", method] for n in names if (n, "method", method) in runs]
                found = [r for rs in by_point for r in rs]
                if not found or (where is None and len({r["point"].split(" / ", 1)[1] for r in found}) == 1):
                    continue
                regrets = [r["regret"] for r in found]
                near = sum(r <= MEDIAN_TARGET for r in regrets) / len(regrets)
                setting = "all" if where is None else ", ".join(where)
                yield (
                    f"| {label} | {setting} | {method} | {len(by_point)} | {len(found)} |"
                    f" {100 * statistics.median(regrets):.3f} | {100 * max(regrets):.2f} | {100 * near:.0f} % |"
                    f" {max(r['calls'] for r in found):,} |"
                )


def verdicts(runs: Runs) -> Iterator[str]:
    """The targets, and where `rl` misses them."""
    own = {n: rs for (n, _, m), rs in runs.items() if m == "rl"}
    over = {n: rs for n, rs in own.items() if statistics.median(r["regret"] for r in rs) > MEDIAN_TARGET}
    bad = {n: rs for n, rs in own.items() if max(r["regret"] for r in rs) > WORST_TARGET}
    yield f"- Median of a point above 0.1 %: {_names(over)}."
    yield f"- A run worse than 1 %: {_names(bad)}."
    behind = []
    for name, rs in own.items():
        other = runs.get((name, "method", "megatron"))
        if other and statistics.median(r["rate"] for r in rs) < other[0]["rate"] * (1 - 1e-9):
            behind.append(name)
    yield f"- Median of `rl` below `megatron`: {', '.join(behind) or 'at no point'}."


def _names(found: Runs | dict[str, list[dict[str, Any]]]) -> str:
    return "; ".join(f"{n} ({percent([r['regret'] for r in rs])})" for n, rs in found.items()) or "none"


def point_table(runs: Runs, methods: Sequence[str]) -> Iterator[str]:
    """Median (worst) regret of every method at every point, with its seeds, and the gain over Megatron."""
    yield (
        "| point | optimum, tokens/s/GPU | optimum / megatron | "
        + " | ".join(methods)
        + " | rl, CPU s | exact, CPU s |"
    )
    yield "|---|---:|---:|" + "---:|" * (len(methods) + 2)
    for point in CATALOGUE:
        found = {m: runs[point.name, "method", m] for m in methods if (point.name, "method", m) in runs}
        if not found:
            continue
        first = next(iter(found.values()))[0]
        megatron = found.get("megatron")
        gain = f"{first['optimum'] / megatron[0]['rate']:.4f}" if megatron and megatron[0]["rate"] else ""
        cells = [_cell(found.get(m, [])) for m in methods]
        own = f"{statistics.median(r['cpu_s'] for r in found['rl']):.1f}" if "rl" in found else ""
        mark = " *" if point.tuned else ""
        yield (
            f"| {point.name}{mark} | {first['optimum']:,.1f} | {gain} | " + " | ".join(cells) + f" | {own} |"
            f" {first['exact_s']:.2f} |"
        )


def _cell(runs: Sequence[dict[str, Any]]) -> str:
    return f"{percent([r['regret'] for r in runs])} n={len(runs)}" if runs else ""


def page(runs: Runs, refused: Sequence[str], found: Sorted) -> str:
    """The whole page."""
    methods = [m for m in METHODS if any(name == m for _, _, name in runs)]
    ran = {n for n, _, _ in runs}
    missing = [p.name for p in CATALOGUE if p.name not in ran and p.name not in refused]
    total = sum(len(rs) for rs in runs.values())
    parts = [
        HEAD,
        f"Run so far: {total} runs at {len(ran)} of {len(CATALOGUE)} points; seeds count from 0.",
        "",
        *described(found.kept),
        *depends(found),
        "",
    ]
    parts += ["## Targets of `rl`: median within 0.1 %, worst within 1 %, never behind `megatron`", "", *verdicts(runs)]
    parts += ["", "## Both halves", "", *half_table(runs, methods), "", "## Every point", ""]
    parts += ["Median regret (worst), and the number of seeds; * marks models that settings were chosen on.", ""]
    parts += [*point_table(runs, methods), ""]
    parts += ["CPU seconds were taken on two cores that other processes shared, some of them with many others.", ""]
    if refused:
        parts += ["## Nothing fits", "", *(f"- {name}" for name in refused), ""]
    if missing:
        parts += ["## Not run", "", *(f"- {name}" for name in missing), ""]
    return "\n".join(parts)


def main() -> None:
    """Write the page and the lines it is made of."""
    lines = read(Path(sys.argv[1]) if len(sys.argv) > 1 else RESULTS)
    names = {line["point"] for line in lines}
    found = sort_out(lines, cost_models(p for p in CATALOGUE if p.name in names))
    short = [{k: v for k, v in line.items() if k not in ("history", "degrees", "choices")} for line in found.kept]
    order = [p.name for p in CATALOGUE]
    short.sort(key=lambda line: (order.index(line["point"]), METHODS.index(line["name"]), line["seed"]))
    KEPT.write_text("".join(json.dumps(line) + "\n" for line in short))
    refused = list(dict.fromkeys(line["point"] for line in short if "refused" in line))
    (DOCS / "search.md").write_text(page(grouped(short), refused, found))


if __name__ == "__main__":
    main()
