"""Writes the study's page and plots: ``python -m benchmarks.paper.page [RESULTS] [--out docs/results/paper.md]``.

Runs whose prices or code have changed are left out and counted; ``--unchecked`` shows whatever the file has. Plots go
beside the page, and as PNG too with ``--png``.
"""

import argparse
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.paper import evidence, tables
from benchmarks.paper.identity import Sorted, cost_models, described, key, sort_out
from benchmarks.paper.plots import regret_curves, throughput_bars
from benchmarks.paper.points import BUDGET, FAMILIES, FULL, METHODS, SERIES, SIZES, SUBSET, TUNED_ON, VARIANTS
from benchmarks.paper.run import OUT, SEEDS, read
from benchmarks.paper.tables import Runs, grouped, percent, rates_of

DOCS = Path(__file__).parents[2] / "docs" / "results"
POINTS = {p.name: p for p in (*SUBSET, *FULL)}

HEAD = f"""# Learning to shard, measured

Made by `{{command}}`: do not edit. Run again: `make paper` (resumable; what has changed since is run again, and only
that), on more points `make paper-full`. The paper is [arXiv 2509.00217](https://arxiv.org/abs/2509.00217); the sizes of
its models are not published ([ours](../gpt-moe.md) are chosen), so that this page repeats its questions alone.

Every figure is a **prediction of the simulator**, compared within one space; nothing here was measured on GPUs. All
searches share the space, its masks, the evaluation and a budget of {BUDGET:,} calls, counted by the problem; a strategy
asked for again costs no call, for every method alike. `megatron` holds Megatron's choices and tries every degree point
(with each layout of the residual, tokens gathered and exchanged), so it has no seed and its own number of calls. The
optimum is proven by `exact`, of which no search reads anything. `rl` is ours, `rl-paper` the agent as published (T = 3,
tau = 0.95, 5 chunks, 4,000 calls, no masks beyond single components; the weights and sizes that the paper leaves open
are those of `rl`). tokens/s/GPU divides by every GPU of the cluster, idle ones too.
"""
COLLECTIVE = """Degrees are held (the optimum's where it splits experts; the best with dp = ep = 1 and tp 8 or 16, the
paper's arrangement), and the experts' second matrix at either choice: 1 is the all_reduce form, 0 the all_gather form.
All else is free and settled exactly in each, so that no search's luck is in these ratios. Rates in tokens/s/GPU.

**The re-gather trap.** The last column leaves out what follows that matrix in the gather form, as a study that forgets
the re-gather would: just the second gather where dp = ep = 1, elsewhere the sums over expert ranks too, so that it is
the most the trap can fake. Bold: the trap makes the all_gather form the faster one.
"""
GAIN = """Megatron's choices at their best degrees, then free choices at those degrees, then free degrees as well: the
optimum is the product of the two gains. Batches and times of a step are the optimum's, Megatron's in brackets. The
batch is one of the degrees and comes from a grid of up to a quarter a step: where a limit of TPOT binds, choices that
make a step a little faster may let the next batch in, and the gain is then mostly that of the grid. Which choices
differ is in the table of strategies above.
"""
CHOICES = """What the best `rl` strategy does with each matrix: 0 splits what it puts out, 1 what it contracts, - keeps
it whole on every rank; in brackets Megatron's choice where it is another (at Megatron's own best degrees). On an axis
of one device all choices are the same, and are written -. Where kinds of layers differ both stand, with a slash.
"""
FAMILY_TITLES = {
    "rl": "`rl` as shipped",
    "policy alone": "The policy alone: `rl` without sweeps and mutations",
    "rl-paper": "The paper's agent",
}


def summary(runs: Runs, points: Sequence[str]) -> Iterator[str]:
    """What the tables say, in sentences made of them."""
    for method in METHODS:
        regrets = [r["regret"] for p in points for r in runs.get((p, "method", method), [])]
        if regrets:
            yield f"- `{method}`: regret of {percent(regrets)} %, median over {len(regrets)} runs (worst)."
    yield from _below(runs, points)
    gains = {p: line["optimum"] / line["megatron"] for p in points for line in _gains(runs, p)}
    if gains:
        most = max(gains, key=lambda p: gains[p])
        yield (
            f"- The joint optimum is {statistics.median(gains.values()):.4f} times Megatron's choices at their best"
            f" degrees in the median of {len(gains)} points, at most {gains[most]:.4f} ({most}). The paper says up to"
            " 1.06."
        )
    forms = [
        pair for p in points for line in runs.get((p, "collective", "both"), []) for pair in tables.pairs(line["forms"])
    ]
    if forms:
        better = sum(g["rate"] > r["rate"] for r, g in forms)
        faked = sum(g["rate"] <= r["rate"] < g["forgotten"] for r, g in forms)
        yield (
            f"- With degrees held, the all_gather form behind the experts is faster in {better} of {len(forms)} cases;"
            f" forgetting the re-gather would turn {faked} more to it."
        )


def _below(runs: Runs, points: Sequence[str]) -> Iterator[str]:
    """Where the median of `rl` is below Megatron's choices at their best degrees."""
    ratios = {}
    for p in points:
        own, theirs = rates_of(runs, p, "rl"), rates_of(runs, p, "megatron")
        if len(own) and len(theirs):
            ratios[p] = float(statistics.median(own) / theirs[0])
    below = [f"{p} ({ratio:.4f})" for p, ratio in ratios.items() if ratio < 1 - 1e-9]
    if ratios:
        yield (
            f"- The median of `rl` is below `megatron`, which tries every degree point, at {len(below)} of"
            f" {len(ratios)} points{': ' * bool(below)}{'; '.join(below)}."
        )


def _gains(runs: Runs, point: str) -> list[dict[str, Any]]:
    return [line for line in runs.get((point, "gain", "optimum"), []) if line.get("megatron")]


def _why(runs: Runs, points: Sequence[str]) -> Iterator[str]:
    """Through what the largest gain comes."""
    found = {p: line for p in points for line in _gains(runs, p)}
    if not found:
        return
    most = max(found, key=lambda p: float(found[p]["optimum"] / found[p]["megatron"]))
    line = found[most]
    own, other = line["seconds"]
    moves = ", ".join(f"{k} {tables.sign(a)} for {tables.sign(b)}" for k, (a, b) in line["differs"].items()) or "none"
    compute, collective = (1e3 * (own[kind] - other[kind]) for kind in ("compute", "collective"))
    yield (
        f"The largest gain, {line['optimum'] / line['megatron']:.4f} at {most}: choices that differ are {moves};"
        f" a step's compute changes by {compute:+.2f} ms, its collectives by {collective:+.2f} ms."
    )


def provenance(found: Sorted, runs: Runs, points: Sequence[str], *, checked: bool) -> Iterator[str]:
    """Seeds, origin, and what was left out."""
    counts = [len(runs.get((p, "method", m), [])) for p in points for m in METHODS if m != "megatron"]
    variants = [len(rs) for (_, kind, _), rs in runs.items() if kind == "variant"]
    yield f"- Points: {len(points)}; seeds of a method at a point: {_range(counts)} (`make paper`: {SEEDS['method']}),"
    yield f"  of a variant: {_range(variants)} ({SEEDS['variant']}); {sum(map(len, runs.values())):,} runs in all."
    yield from described(found.kept)
    if not checked:
        yield "- Not checked against the prices and code of today: figures may be of others."
    yield from depends(found)
    missing = [p.name for p in SUBSET if p.name not in points]
    if missing:
        yield f"- Not run of `make paper`: {'; '.join(missing)}."


def depends(found: Sorted) -> Iterator[str]:
    """Of which runs prices and code are not known, and which were left out."""
    if found.unknown:
        yield f"- {found.unknown:,} runs do not say which prices and code they ran with: unknown cost model."
    if found.stale:
        yield f"- Left out: {len(found.stale):,} runs with other prices or code than today's: run again to have them."


def _range(counts: Sequence[int]) -> str:
    if not counts:
        return "none"
    return f"{min(counts)}" if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"


def page(runs: Runs, found: Sorted, *, checked: bool, command: str, stem: str) -> str:
    """The whole page."""
    names = {p for p, kind, _ in runs if kind == "method"}
    points = [p for p in POINTS if p in names]
    tuned = {p: POINTS[p].tuned for p in points}
    refused = {line["point"]: line["refused"] for line in found.kept if "refused" in line}
    parts = [HEAD.format(command=command), *provenance(found, runs, points, checked=checked), ""]
    parts += ["## What was found", "", *summary(runs, points), "", "## Regret", ""]
    parts += [
        "`1 - rate / optimum` in per cent: median over seeds, worst in brackets. 100: nothing feasible found.",
        "",
    ]
    parts += [*tables.regret_table(runs, points, tuned), ""]
    parts += [f"Settings of `rl` were chosen on {len(TUNED_ON)} models (*); the others are held out.", ""]
    parts += [f"![Regret over calls]({stem}-regret.svg)", ""]
    parts += ["Regret over calls: median of the seeds, bands from the best to the worst; below 0.0001 drawn there.", ""]
    parts += _comparison(runs, points, stem)
    parts += ["## The strategies found", "", CHOICES, *tables.choice_table(runs, points), ""]
    parts += ["Degrees, and devices used: best of the seeds.", "", *tables.degree_table(runs, points), ""]
    parts += ["## Where joint search gains over Megatron's choices", "", GAIN, *_why(runs, points), ""]
    parts += [*tables.gain_table(runs, points), ""]
    parts += _objections(runs, points)
    parts += ["## Seconds of a run", "", "CPU seconds of one process, medians; other processes ran beside.", ""]
    parts += [*tables.seconds_table(runs, points), ""]
    if refused:
        parts += ["## Not feasible", "", *(f"- {name}: {why}" for name, why in refused.items()), ""]
    return "\n".join(parts)


def _comparison(runs: Runs, points: Sequence[str], stem: str) -> list[str]:
    """Ratios, by pair and by series."""
    parts = ["## Methods against each other", ""]
    parts += [
        "Geometric mean over the points of the ratio of mean rates, with 95 % bootstrap intervals: seeds are drawn",
        "again within each point, points are not (they were chosen, not drawn).",
        "",
    ]
    parts += [*tables.pair_table(runs, points), ""]
    parts += [
        "`rl` over each at every point: ratio of means over seeds, with 95 % bootstrap intervals over seeds (none",
        "where no seed differs).",
        "",
        *tables.ratio_table(runs, points),
        "",
    ]
    parts += ["## Throughput by size, cluster, workload and model", ""]
    parts += [
        f"Throughput over Megatron's. The first series ({SIZES}) is the comparison of the paper's third figure; its",
        "671 B model is of another family than the four GPT-MoE around it.",
        "",
    ]
    parts += [f"![Throughput over Megatron's]({stem}-throughput.svg)", ""]
    parts += ["Bars: median of the seeds, whiskers from the worst to the best; the dashed line is Megatron's.", ""]
    for title, series in SERIES.items():
        if any(len(rates_of(runs, p.name, "megatron")) for p in series):
            parts += [f"### {title[0].upper()}{title[1:]}", "", *tables.series_table(runs, series), ""]
    return parts


def _objections(runs: Runs, points: Sequence[str]) -> list[str]:
    """A section for each objection of the reviewers."""
    parts = ["## Objection: the collective is not isolated", "", COLLECTIVE]
    parts += [*tables.collective_table(runs, points), ""]
    parts += [
        "The FFN alone, against measured collectives ([all points](ffn-collectives.md)):",
        "",
        *evidence.ffn_lines(),
        "",
    ]
    parts += ["## Objection: no spread is shown", ""]
    parts += [
        "Every search ran with the seeds said above. Regrets have medians and worst seeds, curves bands over all",
        "seeds, ratios intervals; no figure is the best of several runs but where a table says so.",
        "",
    ]
    parts += ["## Objection: hyperparameters are not varied", ""]
    ablated = [p for p in points if any((p, "variant", v) in runs for v in VARIANTS)]
    parts += [
        "One change each: median regret in per cent (worst), and median calls until within 1 % of the optimum. alpha",
        "and beta weigh throughput and improvement; `rl` ranks rewards within a batch: only their order counts.",
        "",
    ]
    for family in FAMILIES:
        parts += [f"### {FAMILY_TITLES[family]}", "", *tables.variant_table(runs, family, ablated), ""]
    parts += ["## Objection: are the strategies executable?", ""]
    parts += [
        f"The space holds only what ranks run: {evidence.executed()} ([sweeps](../sweeps.md));",
        "[the matrix](../compatibility.md) says it by model and pattern. No search here used the simulate-only parts",
        "of the [wider space](../wider-space.md).",
        "",
    ]
    parts += ["## Objection: the simulator's error on the collectives used", ""]
    parts += [
        "Rows of public H100 tables (aiconfigurator-core 0.12.0, Apache-2.0, (c) NVIDIA) that no constant was fitted",
        "to; `make bench-fidelity` has all kinds. Within a node, but for the exchange of experts over 4 nodes: the",
        "tables have no all_reduce or all_gather across nodes, so that this part is assumed. Differences between",
        "strategies smaller than these errors are not differences between machines.",
        "",
    ]
    parts += [*evidence.error_table(), ""]
    return parts


def main() -> None:
    """Write page and plots."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path, nargs="?", default=OUT)
    parser.add_argument("--out", type=Path, default=DOCS / "paper.md")
    parser.add_argument("--unchecked", action="store_true", help="do not compare with today's prices and code")
    parser.add_argument("--png", action="store_true", help="plots as PNG too")
    given = parser.parse_args()
    lines = [line for line in read(given.results) if line["point"] in POINTS]
    if not lines:
        parser.error(f"{given.results} has no runs: python -m benchmarks.paper.run makes them")
    if given.unchecked:
        found = Sorted(kept=list({key(line): line for line in lines}.values()), stale=[], unknown=0)
    else:
        names = {line["point"] for line in lines}
        found = sort_out(lines, cost_models(p for p in POINTS.values() if p.name in names))
    runs, out = grouped(found.kept), given.out
    out.parent.mkdir(parents=True, exist_ok=True)
    command = "make paper" if out.stem == "paper" else "make paper-full"
    text = page(runs, found, checked=not given.unchecked, command=command, stem=out.stem)
    out.write_text(text, encoding="utf-8")
    names = {p for p, kind, _ in runs if kind == "method"}
    for suffix in (".svg", ".png") if given.png else (".svg",):
        regret_curves(runs, [p for p in POINTS if p in names], out.with_name(f"{out.stem}-regret{suffix}"))
        throughput_bars(runs, out.with_name(f"{out.stem}-throughput{suffix}"))


if __name__ == "__main__":
    main()
