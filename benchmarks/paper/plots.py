"""The study's plots."""

from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np

mpl.use("svg")
mpl.rcParams["svg.hashsalt"] = "autoshard"  # the same data give the same file
import matplotlib.pyplot as plt  # noqa: E402  # after the backend is chosen

from benchmarks.paper.points import BUDGET, METHODS  # noqa: E402

FLOOR = 1e-4
"""Regret below this is drawn there: a logarithm has no zero."""
COLUMNS = 3


def regret_curves(runs: dict[tuple[str, str, str], list[dict[str, Any]]], path: Path) -> None:
    """Regret over calls, a panel a point: the median of the seeds, a band from the best to the worst."""
    points = list(dict.fromkeys(p for p, kind, _ in runs if kind == "method"))
    rows = -(-len(points) // COLUMNS)
    figure, axes = plt.subplots(
        rows, COLUMNS, figsize=(4 * COLUMNS, 2.6 * rows), squeeze=False, sharex=True, sharey=True
    )
    calls = np.unique(np.geomspace(1, BUDGET, 120).astype(int))
    for axis, point in zip(axes.flat, points, strict=False):
        for number, method in enumerate(METHODS):
            found = runs.get((point, "method", method), [])
            if not found:
                continue
            curves = np.array([_curve(run, calls) for run in found]).clip(FLOOR)
            color = f"C{number}"
            axis.plot(calls, np.median(curves, 0), label=method, color=color, lw=1.2)
            axis.fill_between(calls, curves.min(0), curves.max(0), color=color, alpha=0.12, lw=0)
        axis.set(xscale="log", yscale="log", ylim=(FLOOR, 1.5))
        axis.set_title(point, fontsize=7)
    for axis in list(axes.flat)[len(points) :]:
        axis.set_visible(False)
    for axis in axes[-1]:
        axis.set_xlabel("simulator calls")
    for axis in axes[:, 0]:
        axis.set_ylabel("regret")
    figure.legend(*axes.flat[0].get_legend_handles_labels(), loc="lower center", ncol=len(METHODS), fontsize=8)
    figure.tight_layout(rect=(0, 0.04, 1, 1))
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def _curve(run: dict[str, Any], calls: np.ndarray) -> np.ndarray:
    """Regret after each number of calls; 1 before anything was found."""
    at = np.array([c for c, _ in run["history"]])
    rate = np.array([r for _, r in run["history"]])
    index = np.searchsorted(at, calls, side="right") - 1
    best = np.where(index >= 0, rate[index.clip(0)], 0.0)
    return 1 - best / run["optimum"]
