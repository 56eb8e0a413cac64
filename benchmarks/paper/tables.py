"""The study's tables, each a stream of lines of Markdown."""

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import bootstrap

from benchmarks.paper.points import FAMILIES, METHODS, Point

Runs = dict[tuple[str, str, str], list[dict[str, Any]]]
"""(point, kind, name) -> runs by seed."""
Rates = NDArray[np.float64]
RESAMPLES = 4000
NEAR = 0.01
"""Regret within which a search counts as arrived."""
NO_MATRIX = ("norm", "act", "attention", "mixer", "state")
"""Ops without a matrix of their own: what they do follows from their neighbours."""


def grouped(lines: Sequence[dict[str, Any]]) -> Runs:
    """Runs by task, in order of seed."""
    found: Runs = defaultdict(list)
    for line in sorted(lines, key=lambda line: int(line["seed"])):
        if "refused" not in line:
            found[line["point"], line["kind"], line["name"]].append(line)
    return dict(found)


def percent(regrets: Sequence[float]) -> str:
    """``0.01 (0.2)``."""
    return f"{_digits(100 * statistics.median(regrets))} ({_digits(100 * max(regrets))})"


def _digits(value: float) -> str:
    """Three digits, and no more than three behind the point."""
    return f"{value:.3f}".rstrip("0").rstrip(".") if value < 1 else f"{value:.3g}"


def rates_of(runs: Runs, point: str, method: str) -> Rates:
    """Rates of the seeds of a method at a point."""
    return np.array([r["rate"] for r in runs.get((point, "method", method), [])])


def head(first: Sequence[str], numbers: Sequence[str]) -> Iterator[str]:
    """The two lines above a table: columns of text, then of numbers."""
    yield f"| {' | '.join((*first, *numbers))} |"
    yield "|" + "---|" * len(first) + "---:|" * len(numbers)


def regret_table(runs: Runs, points: Sequence[str], tuned: dict[str, bool]) -> Iterator[str]:
    """Regret of every method at every point, then over the halves."""
    yield from head(["point"], ["optimum, tokens/s/GPU", *METHODS])
    for point in points:
        first = next(iter(r for m in METHODS for r in runs.get((point, "method", m), [])))
        cells = [_regrets([r["regret"] for r in runs.get((point, "method", m), [])]) for m in METHODS]
        yield f"| {point}{' *' if tuned[point] else ''} | {first['optimum']:,.1f} | " + " | ".join(cells) + " |"
    for label, wanted in (("points of models used while tuning (*)", True), ("held-out points", False)):
        chosen = [p for p in points if tuned[p] is wanted]
        pooled = [[r["regret"] for p in chosen for r in runs.get((p, "method", m), [])] for m in METHODS]
        yield f"| **{label}** | | " + " | ".join(map(_regrets, pooled)) + " |"


def _regrets(regrets: Sequence[float]) -> str:
    return percent(regrets) if regrets else "not run"


def ratio_table(runs: Runs, points: Sequence[str]) -> Iterator[str]:
    """Mean rate of ``rl`` over another's, with a bootstrap interval over seeds (95 %, percentile)."""
    others = [m for m in METHODS if m != "rl"]
    yield from head(["point"], [f"rl / {m}" for m in others])
    for point in points:
        own = rates_of(runs, point, "rl")
        cells = []
        for m in others:
            rates = rates_of(runs, point, m)
            cells.append(_ratio(own, rates) if len(own) and len(rates) and rates.mean() > 0 else "")
        yield f"| {point} | " + " | ".join(cells) + " |"


def _ratio(a: Rates, b: Rates) -> str:
    value = a.mean() / b.mean()
    if len(a) < 2 or (np.ptp(a) <= 1e-12 * a.max() and np.ptp(b) <= 1e-12 * b.max()):
        return f"{value:.4f}"
    pair = (a, b if len(b) > 1 else np.repeat(b, len(a)))
    found = bootstrap(
        pair,
        lambda x, y, axis: x.mean(axis) / y.mean(axis),
        method="percentile",
        vectorized=True,
        n_resamples=RESAMPLES,
        rng=np.random.default_rng(0),
    )
    low, high = found.confidence_interval
    return f"{value:.4f} [{low:.4f}, {high:.4f}]"


def pair_table(runs: Runs, points: Sequence[str]) -> Iterator[str]:
    """Every method over every other: geometric mean over points, interval by resampling the seeds of each point."""
    yield from head(["row / column"], METHODS)
    means = {m: _means(runs, points, m) for m in METHODS}
    for row in METHODS:
        cells = ["1" if row == m else _geometric(means[row], means[m]) for m in METHODS]
        yield f"| {row} | " + " | ".join(cells) + " |"


def _means(runs: Runs, points: Sequence[str], method: str) -> Rates | None:
    """``[1 + resamples, points]``: mean rates over the seeds, and over as many drawn with replacement."""
    rng, columns = np.random.default_rng(0), []
    for point in points:
        rates = rates_of(runs, point, method)
        if not len(rates):
            return None
        drawn = rates[rng.integers(len(rates), size=(RESAMPLES, len(rates)))].mean(1)
        columns.append(np.concatenate([[rates.mean()], drawn]))
    return np.array(columns).T


def _geometric(a: Rates | None, b: Rates | None) -> str:
    if a is None or b is None or not (a > 0).all() or not (b > 0).all():
        return "not at every point"
    ratios = np.exp(np.log(a / b).mean(1))
    low, high = np.percentile(ratios[1:], (2.5, 97.5))
    return f"{ratios[0]:.3f} [{low:.3f}, {high:.3f}]"


def series_table(runs: Runs, points: Sequence[Point]) -> Iterator[str]:
    """Throughput of every method over Megatron's at the points of a series: median (least to most) of the seeds."""
    others = [m for m in METHODS if m != "megatron"]
    yield from head(["point"], ["megatron, tokens/s/GPU", "optimum / megatron", *(f"{m} / megatron" for m in others)])
    for point in points:
        base = rates_of(runs, point.name, "megatron")
        found = next((r for m in METHODS for r in runs.get((point.name, "method", m), [])), None)
        if found is None or not len(base) or base[0] <= 0:
            continue
        cells = [_spread(rates_of(runs, point.name, m) / base[0]) for m in others]
        yield f"| {point.name} | {base[0]:,.1f} | {found['optimum'] / base[0]:.4f} | " + " | ".join(cells) + " |"


def _spread(values: Rates) -> str:
    if not len(values):
        return "not run"
    if np.ptp(values) < 5e-4:
        return f"{np.median(values):.3f}"
    return f"{np.median(values):.3f} ({values.min():.3f} to {values.max():.3f})"


def best_of(runs: Runs, point: str, method: str) -> dict[str, Any] | None:
    """The best run of a method, None if none found a strategy."""
    found = [r for r in runs.get((point, "method", method), []) if r["degrees"]]
    return max(found, key=lambda r: float(r["rate"])) if found else None


def degree_table(runs: Runs, points: Sequence[str]) -> Iterator[str]:
    """Degrees and devices used by the best of ``rl``, of ``rl-paper`` and of Megatron's."""
    names = ("pp", "dp", "tp", "ep", "etp", "batch", "replicas")
    yield from head(["point", "method"], ["tokens/s/GPU", *names, "devices used"])
    for point in points:
        for method in ("rl", "rl-paper", "megatron"):
            best = best_of(runs, point, method)
            if best is None:
                continue
            d = best["degrees"]
            used, total = d["pp"] * d["dp"] * d["tp"] * d["replicas"], int(point.split(" / ")[1].rpartition("x")[2])
            cells = " | ".join(f"{d[n]:,}" for n in names)
            yield f"| {point} | {method} | {best['rate']:,.1f} | {cells} | {used:,} of {total:,} |"


def choice_table(runs: Runs, points: Sequence[str]) -> Iterator[str]:
    """What the best of ``rl`` does with every matrix; what Megatron's best does otherwise is in brackets."""
    columns = ("attention", "router", "experts", "dense and shared FFN", "embedding, head", "residual, dispatch")
    yield from head(["point", *columns], [])
    for point in points:
        best, other = best_of(runs, point, "rl"), best_of(runs, point, "megatron")
        if best is None or other is None or "choices" not in best or "choices" not in other:
            continue
        cells: dict[str, list[str]] = {column: [] for column in columns}
        for name, (own, theirs) in _by_op(best["choices"], other["choices"]).items():
            aside = "" if own == theirs else f" ({theirs})"
            cells[_column(name)].append(f"{name} {own}{aside}")
        yield f"| {point} | " + " | ".join(", ".join(cells[c]) for c in columns) + " |"


def _by_op(own: dict[str, int | None], other: dict[str, int | None]) -> dict[str, tuple[str, str]]:
    """Choices of both by op with a matrix; those of several kinds of block side by side where they differ."""
    found: dict[str, tuple[dict[str, None], dict[str, None]]] = {}
    for key, choice in own.items():
        name = key.partition("/")[2]
        if not name.endswith(NO_MATRIX):
            pair = found.setdefault(name, ({}, {}))
            pair[0][sign(choice)] = pair[1][sign(other[key])] = None
    return {name: ("/".join(a), "/".join(b)) for name, (a, b) in found.items()}


def _column(name: str) -> str:
    if name in ("residual", "dispatch"):
        return "residual, dispatch"
    if name in ("embed", "head"):
        return "embedding, head"
    if name == "router":
        return "router"
    if name.startswith("experts"):
        return "experts"
    return "dense and shared FFN" if name.startswith(("gate", "up", "down", "shared")) else "attention"


def sign(choice: int | None) -> str:
    """0, 1, or a dash for whole on every rank."""
    return "-" if choice is None else str(choice)


def pairs(lines: Sequence[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """The forms of a collective line: all_reduce, all_gather."""
    return zip(lines[::2], lines[1::2], strict=True)


def collective_table(runs: Runs, points: Sequence[str]) -> Iterator[str]:
    """Only the collective behind the experts varied; then with the re-gather forgotten."""
    yield from head(
        ["point", "degrees"], ["all_reduce form", "all_gather form", "gather / reduce", "the same, re-gather forgotten"]
    )
    for point in points:
        line = next(iter(runs.get((point, "collective", "both"), [])), {"forms": []})
        for reduce, gather in pairs(line["forms"]):
            d = reduce["degrees"]
            where = ", ".join(f"{n} {d[n]}" for n in ("pp", "dp", "tp", "ep", "etp", "batch"))
            trap = gather["forgotten"] / reduce["rate"]
            bold = "**" if trap > 1 else ""
            yield (
                f"| {point} | {where} | {reduce['rate']:,.1f} | {gather['rate']:,.1f} |"
                f" {gather['rate'] / reduce['rate']:.4f} | {bold}{trap:.4f}{bold} |"
            )


def gain_table(runs: Runs, points: Sequence[str]) -> Iterator[str]:
    """What the optimum gains over Megatron's choices, and through what."""
    parts = ["optimum / megatron", "by choices at its degrees", "by other degrees", "batch"]
    yield from head(["point"], [*parts, "compute, ms", "collectives, ms"])
    for point in points:
        line = next(iter(runs.get((point, "gain", "optimum"), [])), None)
        if line is None or "optimum" not in line:
            continue
        own, other = line["seconds"]
        times = (f"{1e3 * own[kind]:,.2f} ({1e3 * other[kind]:,.2f})" for kind in ("compute", "collective"))
        batch, theirs = line["degrees"]["batch"], line["megatron_degrees"]["batch"]
        yield (
            f"| {point} | {line['optimum'] / line['megatron']:.4f} | {line['free_choices'] / line['megatron']:.4f} |"
            f" {line['optimum'] / line['free_choices']:.4f} | {batch:,} ({theirs:,}) | " + " | ".join(times) + " |"
        )


def variant_table(runs: Runs, family: str, points: Sequence[str]) -> Iterator[str]:
    """Regret of every variant of an agent, and the calls it took to come near."""
    yield from head(["change"], [f"{p}: {what}" for p in points for what in ("regret %", "calls to 1 %")])
    for name in FAMILIES[family]:
        cells = []
        for p in points:
            found = runs.get((p, "variant", f"{family}: {name}"), [])
            cells.append(_regrets([r["regret"] for r in found]))
            cells.append(_calls(found))
        yield f"| {name} | " + " | ".join(cells) + " |"


def _calls(runs: Sequence[dict[str, Any]]) -> str:
    """Median calls until within `NEAR` of the optimum."""
    if not runs:
        return ""
    first = [next((float(c) for c, rate in r["history"] if rate >= r["optimum"] * (1 - NEAR)), math.inf) for r in runs]
    median = statistics.median(first)
    return "not reached" if math.isinf(median) else f"{median:,.0f}"


def seconds_table(runs: Runs, points: Sequence[str]) -> Iterator[str]:
    """CPU seconds of a run: medians over seeds."""
    yield from head(["point"], ["exact", *METHODS])
    middle: Callable[[list[dict[str, Any]]], str] = lambda rs: f"{statistics.median(r['cpu_s'] for r in rs):.2f}"  # noqa: E731
    for point in points:
        found = [runs.get((point, "method", m), []) for m in METHODS]
        exact = statistics.median(r["exact_s"] for rs in found for r in rs)
        yield f"| {point} | {exact:.2f} | " + " | ".join(middle(rs) if rs else "" for rs in found) + " |"
