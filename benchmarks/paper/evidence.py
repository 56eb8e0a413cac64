"""What the page takes from elsewhere: the simulator's error on measured collectives, strategies that ran."""

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from autoshard.calibrate import summary
from benchmarks import ffn_collectives, fidelity
from benchmarks.paper.tables import head

SWEEPS = Path(__file__).parents[2] / "docs" / "sweeps.md"
COLLECTIVES = ("nccl", "custom_allreduce", "deepep")


def error_table() -> Iterator[str]:
    """Error of predicted seconds on measured rows that were not fitted, by collective."""
    errors = fidelity.errors_of(fidelity.DATA, "H100", kinds=COLLECTIVES)
    yield from head(["collective"], ["rows", "median error %", "90th percentile %"])
    for title, kind, word, _ in fidelity.TARGETS:
        if kind not in errors:
            continue
        values, labels = errors[kind]
        chosen = np.array([word in f"{label}$" for label in labels])
        if chosen.any():
            s = summary(values[chosen])
            yield f"| {title} | {s['rows']} | {s['median_ape']:.1f} | {s['p90_ape']:.1f} |"


def ffn_lines() -> list[str]:
    """The FFN alone, both forms, against measured collectives."""
    return ffn_collectives.agreement()


def executed() -> str:
    """How many strategies ran on ranks, and how many of them differed."""
    found = re.findall(r"(\d+): (\d+) differ", SWEEPS.read_text(encoding="utf-8")) if SWEEPS.exists() else []
    total, wrong = sum(int(n) for n, _ in found), sum(int(n) for _, n in found)
    return f"{total:,} strategies of small models ran on ranks, of which {wrong} differed from the unsharded model"
