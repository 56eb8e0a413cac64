"""Writes ``docs/results/paper.md`` and its plots from a results file: ``python -m benchmarks.paper.page [RESULTS]``."""

import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import bootstrap

from benchmarks.paper.plots import regret_curves
from benchmarks.paper.points import BUDGET, FULL, METHODS, SUBSET, VARIANTS
from benchmarks.paper.run import OUT, read

DOCS = Path(__file__).parents[2] / "docs" / "results"
Runs = dict[tuple[str, str, str], list[dict[str, Any]]]
"""(point, kind, name) -> runs by seed."""
TUNED = {p.name: p.tuned for p in (*FULL, *SUBSET)}

HEAD = """# Learning to shard, measured

Made by `make paper`: do not edit. Every figure is a **prediction of the simulator**, compared within one space; nothing
here was measured on GPUs. All searches share the space, its masks, the evaluation and a budget of {budget:,} calls,
counted by the problem; a strategy asked for again costs no call, for every method alike. `megatron` holds Megatron's
choices and tries every degree point (with the residual replicated and sharded), so it has no seed and its own number of
calls. The optimum is proven by `exact`, of which no search reads anything. `rl` is ours, `rl-paper` the agent as
published (T = 3, tau = 0.95, 5 chunks, 4,000 calls, no masks beyond single components; the weights and sizes that the
paper leaves open are those of `rl`).

Regret is `1 - rate / optimum`, in per cent: median over seeds, worst in brackets.
"""
SEEDS = "Seeds of a method at a point: {least} to {most}; `make paper` runs ten where there are fewer.\n"

NOTES = """## The objections to the paper's figures, and what this page says to each

- **The collective isolated.** "All-reduce against all-gather" above holds the degrees and everything else is
  re-optimised; [the FFN alone](ffn-collectives.md) is priced against measured collectives, with the re-gather behind
  the second matrix and without it: forgetting it changes the verdict at 81 of 120 points, always for the gather.
- **Spread shown.** Seeds as said above, medians, worst seeds and intervals; nothing is "up to".
- **Hyperparameters varied.** The table of variants; one change each.
- **Executability.** Every strategy of the space is one that ranks run: [the matrix](../compatibility.md).
- **The simulator's error on the collectives used**, held-out rows of public H100 tables (`make bench-fidelity`):
  all_reduce 2.6 % and all_gather 3.0 % median, reduce_scatter 3.6 %, all_to_all 6.6 %. Differences between strategies
  smaller than that are not differences between machines.
"""

COLLECTIVE = """Degrees are held (the optimum's where it splits experts; the best with dp = ep = 1 and tp 8 or 16, the
paper's arrangement), and the experts' second matrix at either choice; all else is free. The last column leaves out what
follows that matrix in the gather form, as a study that forgets the re-gather would: just the second gather where
dp = ep = 1, elsewhere the sums over expert ranks too, so that it is the most the trap can fake.
"""
GAIN = """Megatron's choices at their best degrees, then free choices at those degrees, then free degrees as well.
"""


def grouped(lines: Sequence[dict[str, Any]]) -> Runs:
    """Runs by task, in order of seed."""
    found: Runs = defaultdict(list)
    for line in sorted(lines, key=lambda line: int(line["seed"])):
        if "refused" not in line:
            found[line["point"], line["kind"], line["name"]].append(line)
    return dict(found)


def percent(regrets: Sequence[float]) -> str:
    """``0.01 (0.2)``."""
    return f"{100 * statistics.median(regrets):.3g} ({100 * max(regrets):.3g})"


def regret_table(runs: Runs, points: Sequence[str]) -> Iterator[str]:
    """Regret of every method at every point, then over the halves."""
    yield "| point | optimum, tokens/s/GPU | " + " | ".join(METHODS) + " |"
    yield "|---|---:|" + "---:|" * len(METHODS)
    for point in points:
        first = next(iter(r for m in METHODS for r in runs.get((point, "method", m), [])))
        cells = [
            percent([r["regret"] for r in runs[point, "method", m]]) if (point, "method", m) in runs else ""
            for m in METHODS
        ]
        mark = " *" if TUNED.get(point) else ""
        yield f"| {point}{mark} | {first['optimum']:,.1f} | " + " | ".join(cells) + " |"
    for label, wanted in (("points of models used while tuning (*)", True), ("held-out points", False)):
        chosen = [p for p in points if TUNED.get(p) is wanted]
        cells = []
        for m in METHODS:
            regrets = [r["regret"] for p in chosen for r in runs.get((p, "method", m), [])]
            cells.append(percent(regrets) if regrets else "")
        yield f"| **{label}** | | " + " | ".join(cells) + " |"


def ratio_table(runs: Runs, points: Sequence[str]) -> Iterator[str]:
    """Mean rate of ``rl`` over another's, with a bootstrap interval over seeds (95 %, percentile)."""
    others = [m for m in METHODS if m != "rl"]
    yield "| point | " + " | ".join(f"rl / {m}" for m in others) + " |"
    yield "|---|" + "---:|" * len(others)
    for point in points:
        own = np.array([r["rate"] for r in runs.get((point, "method", "rl"), [])])
        cells = []
        for m in others:
            rates = np.array([r["rate"] for r in runs.get((point, "method", m), [])])
            cells.append(_ratio(own, rates) if len(own) and len(rates) and rates.mean() > 0 else "")
        yield f"| {point} | " + " | ".join(cells) + " |"


def _ratio(a: np.ndarray, b: np.ndarray) -> str:
    value = a.mean() / b.mean()
    if len(a) < 2 or (np.ptp(a) == 0 and np.ptp(b) == 0):
        return f"{value:.4f}"
    pair = (a, b if len(b) > 1 else np.repeat(b, len(a)))
    found = bootstrap(
        pair,
        lambda x, y, axis: x.mean(axis) / y.mean(axis),
        method="percentile",
        vectorized=True,
        n_resamples=4000,
        rng=np.random.default_rng(0),
    )
    low, high = found.confidence_interval
    return f"{value:.4f} [{low:.4f}, {high:.4f}]"


def degree_table(runs: Runs, points: Sequence[str]) -> Iterator[str]:
    """Degrees and devices used by the best of ``rl``, of ``rl-paper`` and of Megatron's."""
    yield "| point | method | rate | pp | dp | tp | ep | etp | batch | replicas | devices used |"
    yield "|---|---|---:|" + "---:|" * 8
    for point in points:
        for method in ("rl", "rl-paper", "megatron"):
            found = [r for r in runs.get((point, "method", method), []) if r["degrees"]]
            if not found:
                continue
            best = max(found, key=lambda r: float(r["rate"]))
            d = best["degrees"]
            used = d["pp"] * d["dp"] * d["tp"] * d["replicas"]
            cells = [str(d[n]) for n in ("pp", "dp", "tp", "ep", "etp", "batch", "replicas")]
            yield f"| {point} | {method} | {best['rate']:,.1f} | " + " | ".join(cells) + f" | {used} |"


def collective_table(runs: Runs, points: Sequence[str]) -> Iterator[str]:
    """Only the collective behind the experts varied; then with the re-gather forgotten."""
    yield "| point | degrees | all_reduce form | all_gather form | gather / reduce | the same, re-gather forgotten |"
    yield "|---|---|---:|---:|---:|---:|"
    for point in points:
        line = next(iter(runs.get((point, "collective", "both"), [])), {"forms": []})
        for reduce, gather in _pairs(line["forms"]):
            d = reduce["degrees"]
            where = ", ".join(f"{n} {d[n]}" for n in ("pp", "dp", "tp", "ep", "etp", "batch"))
            yield (
                f"| {point} | {where} | {reduce['rate']:,.1f} | {gather['rate']:,.1f} |"
                f" {gather['rate'] / reduce['rate']:.4f} | {gather['forgotten'] / reduce['rate']:.4f} |"
            )


def _pairs(lines: Sequence[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    return zip(lines[::2], lines[1::2], strict=True)


def gain_table(runs: Runs, points: Sequence[str]) -> Iterator[str]:
    """What the optimum gains over Megatron's choices, and through what."""
    yield (
        "| point | optimum / megatron | by choices at its degrees | by other degrees |"
        " ms a step, compute + collectives | megatron's | choices that differ |"
    )
    yield "|---|---:|---:|---:|---|---|---|"
    for point in points:
        line = next(iter(runs.get((point, "gain", "optimum"), [])), None)
        if line is None or "optimum" not in line:
            continue
        own, other = (f"{1e3 * s['compute']:.2f} + {1e3 * s['collective']:.2f}" for s in line["seconds"])
        differs = ", ".join(f"{k} {_choice(a)} for {_choice(b)}" for k, (a, b) in line["differs"].items()) or "none"
        yield (
            f"| {point} | {line['optimum'] / line['megatron']:.4f} | {line['free_choices'] / line['megatron']:.4f} |"
            f" {line['optimum'] / line['free_choices']:.4f} | {own} | {other} | {differs} |"
        )


def _choice(choice: int | None) -> str:
    return "none" if choice is None else str(choice)


def variant_table(runs: Runs, points: Sequence[str]) -> Iterator[str]:
    """Regret of every variant of the agent."""
    yield "| variant | " + " | ".join(points) + " |"
    yield "|---|" + "---:|" * len(points)
    for name in VARIANTS:
        cells = [
            percent([r["regret"] for r in runs[p, "variant", name]]) if (p, "variant", name) in runs else ""
            for p in points
        ]
        yield f"| {name} | " + " | ".join(cells) + " |"


def seconds_table(runs: Runs, points: Sequence[str]) -> Iterator[str]:
    """Seconds of a run."""
    yield "| point | exact | " + " | ".join(METHODS) + " |"
    yield "|---|---:|" + "---:|" * len(METHODS)
    for point in points:
        found = {m: runs.get((point, "method", m), []) for m in METHODS}
        exact = next(r["exact_s"] for rs in found.values() for r in rs)
        cells = [f"{statistics.median(r['cpu_s'] for r in rs):.1f}" if rs else "" for rs in found.values()]
        yield f"| {point} | {exact:.1f} | " + " | ".join(cells) + " |"


def page(runs: Runs, lines: Sequence[dict[str, Any]]) -> str:
    """The whole page."""
    points = list(dict.fromkeys(p for p, kind, _ in runs if kind == "method"))
    order = [p.name for p in (*SUBSET, *FULL)]
    points.sort(key=order.index)
    ablated = [p for p in points if any((p, "variant", v) in runs for v in VARIANTS)]
    counts = [len(rs) for (_, kind, m), rs in runs.items() if kind == "method" and m != "megatron"]
    parts = [
        HEAD.format(budget=BUDGET),
        SEEDS.format(least=min(counts), most=max(counts)),
        *regret_table(runs, points),
        "",
    ]
    parts += ["![Regret over calls](paper-regret.svg)", ""]
    parts += ["Median regret over calls; bands reach from the best to the worst seed.", ""]
    parts += ["## Pairwise", "", "Mean rates over seeds, with 95 % bootstrap intervals over seeds.", ""]
    parts += [*ratio_table(runs, points), "", "## What each found", "", *degree_table(runs, points), ""]
    parts += ["## All-reduce against all-gather", "", COLLECTIVE, *collective_table(runs, points), ""]
    parts += ["## Where joint search gains over Megatron's choices", "", GAIN, *gain_table(runs, points), ""]
    if ablated:
        parts += ["## Variants of the agent", "", "Median regret in per cent (worst).", ""]
        parts += [*variant_table(runs, ablated), ""]
    parts += [
        "## Seconds of a run",
        "",
        "CPU seconds; other processes ran beside.",
        "",
        *seconds_table(runs, points),
        "",
    ]
    refused = [line for line in lines if "refused" in line and line["kind"] == "method"]
    if refused:
        parts += ["## Not feasible", ""]
        parts += [f"- {name}: {why}" for name, why in {line["point"]: line["refused"] for line in refused}.items()]
        parts.append("")
    parts.append(NOTES)
    return "\n".join(parts)


def main() -> None:
    """Write page and plots."""
    lines = read(Path(sys.argv[1]) if len(sys.argv) > 1 else OUT)
    runs = grouped(lines)
    DOCS.mkdir(parents=True, exist_ok=True)
    (DOCS / "paper.md").write_text(page(runs, lines))
    regret_curves(runs, DOCS / "paper-regret.svg")


if __name__ == "__main__":
    main()
