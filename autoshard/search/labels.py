"""Pareto fronts of (seconds, bytes) of a part at one degree point: what exactness under memory needs.

Where the fastest choices overflow, time must be traded for memory. The same elimination runs with sets of labels
(seconds, bytes, choices so far) in place of single numbers; a label is dropped when another is no worse in both.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autoshard.search.eliminate import Table, elimination_order

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Front:
    """Labels that none dominates: ``seconds``, ``num_bytes`` [labels], ``options`` [labels, variables] (-1: unset)."""

    seconds: FloatArray
    num_bytes: FloatArray
    options: IntArray

    def pruned(self) -> "Front":
        """Without dominated labels, in order of seconds."""
        order = np.lexsort((self.num_bytes, self.seconds))
        held = self.num_bytes[order]
        before = np.concatenate([[np.inf], np.minimum.accumulate(held)[:-1]])
        keep = order[held < before]
        return Front(self.seconds[keep], self.num_bytes[keep], self.options[keep])

    def plus(self, other: "Front") -> "Front":
        """Every pair of labels added."""
        a = np.repeat(np.arange(len(self.seconds)), len(other.seconds))
        b = np.tile(np.arange(len(other.seconds)), len(self.seconds))
        options = np.maximum(self.options[a], other.options[b])
        return Front(self.seconds[a] + other.seconds[b], self.num_bytes[a] + other.num_bytes[b], options)

    @staticmethod
    def union(fronts: Sequence["Front"]) -> "Front":
        """All labels of several fronts."""
        return Front(
            np.concatenate([f.seconds for f in fronts]),
            np.concatenate([f.num_bytes for f in fronts]),
            np.concatenate([f.options for f in fronts]),
        )


def fronts(
    seconds: Sequence[Table],
    num_bytes: Mapping[int, FloatArray],
    sizes: Mapping[int, int],
    num_variables: int,
    limit: float,
) -> Front:
    """The Pareto front of a part at one point.

    Args:
        seconds: Tables with a leading axis of one point; entries of at least ``limit`` are illegal.
        num_bytes: Bytes per option of each variable.
        sizes: Options per variable.
        num_variables: Width of the returned ``options``.
        limit: Seconds from which a combination counts as illegal.
    """
    nothing = Front(np.zeros(1), np.zeros(1), np.full((1, num_variables), -1, dtype=np.int64))
    pool: list[tuple[tuple[int, ...], dict[tuple[int, ...], Front]]] = []
    for table in seconds:
        cells = {}
        for cell in itertools.product(*(range(sizes[v]) for v in table.variables)):
            columns = (each[option] for each, option in zip(table.classes, cell, strict=True))
            value = float(table.values[(0, *columns)])
            if value < limit:
                cells[cell] = Front(np.array([value]), np.zeros(1), nothing.options)
        pool.append((table.variables, cells))
    for v in elimination_order(seconds, sizes):
        mine = [p for p in pool if v in p[0]]
        pool = [p for p in pool if v not in p[0]]
        scope = tuple(sorted({u for names, _ in mine for u in names} - {v}))
        joined: dict[tuple[int, ...], Front] = {}
        for cell in itertools.product(*(range(sizes[u]) for u in scope)):
            at = dict(zip(scope, cell, strict=True))
            found = []
            for option in range(sizes[v]):
                at[v] = option
                chosen = nothing.options.copy()
                chosen[0, v] = option
                label: Front | None = Front(np.zeros(1), num_bytes[v][[option]], chosen)
                for names, cells in mine:
                    part = cells.get(tuple(at[u] for u in names))
                    label = None if part is None or label is None else label.plus(part)
                if label is not None:
                    found.append(label)
            if found:
                joined[cell] = Front.union(found).pruned()
        pool.append((scope, joined))
    total = nothing
    for _, cells in pool:
        if () not in cells:
            empty = np.zeros(0)
            return Front(empty, empty, np.zeros((0, num_variables), dtype=np.int64))
        total = total.plus(cells[()]).pruned()
    return total
