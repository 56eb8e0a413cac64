"""The study's plots."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np

mpl.use("svg")
mpl.rcParams["svg.hashsalt"] = "autoshard"  # the same data give the same file
import matplotlib.pyplot as plt  # noqa: E402  # after the backend is chosen
from matplotlib.figure import Figure  # noqa: E402

from benchmarks.paper.points import BUDGET, METHODS, SERIES, Point  # noqa: E402
from benchmarks.paper.tables import Runs, rates_of  # noqa: E402

FLOOR = 1e-4
"""Regret below this is drawn there: a logarithm has no zero."""
COLUMNS = 3
MOST_PANELS = 24
COLORS = dict(zip(METHODS, ("C3", "C1", "k", "C0", "C2", "C4", "0.6"), strict=True))
LABELS = {"megatron": "megatron (every degree point: other budget)"}


def regret_curves(runs: Runs, points: Sequence[str], path: Path) -> None:
    """Regret over calls, a panel a point: the median of the seeds, a band from the best to the worst."""
    points = points[:MOST_PANELS]
    rows = -(-len(points) // COLUMNS)
    figure, axes = plt.subplots(
        rows, COLUMNS, figsize=(4 * COLUMNS, 2.5 * rows + 0.6), squeeze=False, sharex=True, sharey=True
    )
    calls = np.unique(np.geomspace(1, BUDGET, 120).astype(int))
    handles: dict[str, Any] = {}
    for axis, point in zip(axes.flat, points, strict=False):
        for method in METHODS:
            found = runs.get((point, "method", method), [])
            if not found:
                continue
            style = {
                "color": COLORS[method],
                "lw": 1.6 if method == "rl" else 1.1,
                "zorder": 3 if method == "rl" else 2,
            }
            if method == "megatron":
                level = max(found[0]["regret"], FLOOR)
                handles[method] = axis.axhline(level, ls="--", label=LABELS[method], **style)
                continue
            curves = np.array([_curve(run, calls) for run in found]).clip(FLOOR)
            (handles[method],) = axis.plot(calls, np.median(curves, 0), label=method, **style)
            axis.fill_between(calls, curves.min(0), curves.max(0), color=COLORS[method], alpha=0.12, lw=0)
        axis.set(xscale="log", yscale="log", ylim=(FLOOR * 0.8, 1.5), xlim=(1, BUDGET))
        axis.set_title(point, fontsize=8)
        axis.grid(alpha=0.25, lw=0.5)
    for axis in list(axes.flat)[len(points) :]:
        axis.set_visible(False)
    for column in range(min(COLUMNS, len(points))):
        lowest = axes[(len(points) - 1 - column) // COLUMNS, column]
        lowest.set_xlabel("simulator calls")
        lowest.tick_params(labelbottom=True)
    for axis in axes[:, 0]:
        axis.set_ylabel("regret (1 = nothing found)")
    figure.tight_layout(rect=(0, 0, 1, 1 - 0.45 / figure.get_figheight()))
    figure.legend(handles=list(handles.values()), loc="upper center", ncol=len(METHODS), fontsize=9, frameon=False)
    _save(figure, path)


def throughput_bars(runs: Runs, path: Path) -> None:
    """Throughput over Megatron's by series: bars are medians of seeds, whiskers reach from worst to best."""
    series = {t: [p for p in ps if len(rates_of(runs, p.name, "megatron"))] for t, ps in SERIES.items()}
    series = {title: points for title, points in series.items() if points}
    if not series:
        return
    figure, axes = plt.subplots(len(series), 1, figsize=(11, 2.7 * len(series)), squeeze=False)
    others = [m for m in METHODS if m != "megatron"]
    width = 0.8 / len(others)
    for axis, (title, shown) in zip(axes[:, 0], series.items(), strict=True):
        for number, method in enumerate(others):
            for at, point in enumerate(shown):
                rates = rates_of(runs, point.name, method) / rates_of(runs, point.name, "megatron")[0]
                if not len(rates):
                    continue
                middle = float(np.median(rates))
                reach = [[middle - rates.min()], [rates.max() - middle]]
                x = at + (number - (len(others) - 1) / 2) * width
                label = method if at == 0 else None
                axis.bar(x, middle, 0.9 * width, color=COLORS[method], label=label)
                axis.errorbar(x, middle, reach, color="0.2", lw=0.8, capsize=1.5)
        axis.axhline(1, color="k", lw=1, ls="--")
        axis.set_xticks(range(len(shown)), [_short(p) for p in shown], fontsize=8)
        axis.set_ylabel("throughput / megatron's", fontsize=8)
        axis.set_title(title, fontsize=9)
        axis.set_ylim(0, 1.15)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.tight_layout(rect=(0, 0, 1, 1 - 0.4 / figure.get_figheight()))
    figure.legend(handles, labels, loc="upper center", ncol=len(others), fontsize=9, frameon=False)
    _save(figure, path)


def _short(point: Point) -> str:
    return f"{point.model}\n{point.cluster}\n{point.label}"


def _save(figure: Figure, path: Path) -> None:
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None, dpi=80)
    plt.close(figure)


def _curve(run: dict[str, Any], calls: np.ndarray) -> np.ndarray:
    """Regret after each number of calls; 1 before anything was found."""
    history = np.array(run["history"], dtype=np.float64).reshape(-1, 2)
    index = np.searchsorted(history[:, 0], calls, side="right") - 1
    best = np.where(index >= 0, history[:, 1][index.clip(0)] if len(history) else 0.0, 0.0)
    return np.asarray(1 - best / float(run["optimum"]))
