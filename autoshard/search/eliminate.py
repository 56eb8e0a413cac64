r"""Variable elimination (min-plus) over factor tables, vectorised over degree points.

A part's time is a sum of factors, each over a few choices. Eliminating a variable replaces the factors that mention it
by their sum minimised over it, a factor over its neighbours; when none is left, the minimum stands alone and the
minimising choices are read back in reverse. For the chain of a transformer block this is the dynamic program over
operators with the layouts in between as state; it works for any graph of choices, in time of the widest factor.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Table:
    """Values over ``[points, *options of variables]``; variables ascend."""

    variables: tuple[int, ...]
    values: FloatArray


def restrict(table: Table, fixed: Mapping[int, int]) -> Table:
    """The table with some variables set to an option."""
    index: tuple[slice | int, ...] = (
        slice(None),
        *(fixed.get(v, slice(None)) for v in table.variables),
    )
    return Table(tuple(v for v in table.variables if v not in fixed), table.values[index])


def add_tables(tables: Sequence[Table], scope: tuple[int, ...], sizes: Mapping[int, int]) -> FloatArray:
    """Sum of tables, broadcast over ``scope`` (ascending)."""
    num_points = tables[0].values.shape[0]
    total = np.zeros((num_points, *(sizes[v] for v in scope)))
    for table in tables:
        shape = [num_points, *(sizes[v] if v in table.variables else 1 for v in scope)]
        total += table.values.reshape(shape)
    return total


def elimination_order(tables: Sequence[Table], sizes: Mapping[int, int]) -> list[int]:
    """Variables in the order in which each leaves the smallest factor (greedy)."""
    scopes = [set(t.variables) for t in tables]
    left = set().union(*scopes) if scopes else set()
    order = []
    while left:
        best = min(left, key=lambda v: (_size(_joined(scopes, v), sizes), v))
        scopes = [*(s for s in scopes if best not in s), _joined(scopes, best)]
        left.remove(best)
        order.append(best)
    return order


def _joined(scopes: Sequence[set[int]], v: int) -> set[int]:
    """The neighbours of ``v``: what the factor left by eliminating it is over."""
    return set().union(*(s for s in scopes if v in s)) - {v}


def _size(variables: set[int], sizes: Mapping[int, int]) -> int:
    return math.prod(sizes[v] for v in variables)


def minimise(tables: Sequence[Table], sizes: Mapping[int, int]) -> tuple[FloatArray, dict[int, IntArray]]:
    """Minimum of the sum of ``tables`` at every point, and the options that reach it.

    Returns:
        The minimum ``[points]`` and, per variable, its option ``[points]``.
    """
    pool = list(tables)
    num_points = pool[0].values.shape[0]
    taken: list[tuple[int, tuple[int, ...], IntArray]] = []
    for v in elimination_order(pool, sizes):
        mine = [t for t in pool if v in t.variables]
        pool = [t for t in pool if v not in t.variables]
        scope = tuple(sorted({u for t in mine for u in t.variables} - {v}))
        ordered = tuple(sorted((*scope, v)))
        total = add_tables(mine, ordered, sizes)
        axis = 1 + ordered.index(v)
        taken.append((v, scope, total.argmin(axis)))
        pool.append(Table(scope, total.min(axis)))
    minimum = np.zeros(num_points)
    for table in pool:
        minimum = minimum + table.values
    rows = np.arange(num_points)
    options: dict[int, IntArray] = {}
    for v, scope, arg in reversed(taken):
        options[v] = arg[(rows, *(options[u] for u in scope))]
    return minimum, options
