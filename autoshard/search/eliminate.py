r"""Variable elimination (min-plus) over factor tables, vectorised over degree points.

A part's time is a sum of factors, each over a few choices. Eliminating a variable replaces the factors that mention it
by their sum minimised over it, a factor over its neighbours; when none is left, the minimum stands alone and the
minimising choices are read back in reverse. For the chain of a transformer block this is the dynamic program over
operators with the layouts in between as state; it works for any graph of choices, in time of the widest factor. Options
that no table of a few can tell apart share a column there, which makes wide tables narrow.
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
    """Values over ``[points, *classes of variables]``; variables ascend.

    ``classes`` says, per variable, which column of its axis each option has.
    """

    variables: tuple[int, ...]
    values: FloatArray
    classes: tuple[tuple[int, ...], ...]

    @staticmethod
    def of_options(variables: tuple[int, ...], values: FloatArray) -> "Table":
        """A table whose axes have a column per option."""
        return Table(variables, values, tuple(tuple(range(n)) for n in values.shape[1:]))

    def column(self, v: int, option: int) -> int:
        """The column of an option of a variable."""
        return self.classes[self.variables.index(v)][option]


def restrict(table: Table, fixed: Mapping[int, int]) -> Table:
    """The table with some variables set to an option."""
    index: tuple[slice | int, ...] = (
        slice(None),
        *(table.column(v, fixed[v]) if v in fixed else slice(None) for v in table.variables),
    )
    left = [j for j, v in enumerate(table.variables) if v not in fixed]
    return Table(tuple(table.variables[j] for j in left), table.values[index], tuple(table.classes[j] for j in left))


def add_tables(tables: Sequence[Table], scope: tuple[int, ...]) -> Table:
    """Sum of tables, broadcast over ``scope`` (ascending), of which each variable is in one of them at least."""
    num_points = tables[0].values.shape[0]
    classes = tuple(refined([t.classes[t.variables.index(v)] for t in tables if v in t.variables]) for v in scope)
    total = np.zeros((*(max(each) + 1 for each in classes), num_points))
    for table in tables:
        values = np.moveaxis(table.values, 0, -1)
        for axis, (v, own) in enumerate(zip(table.variables, table.classes, strict=True)):
            joint = classes[scope.index(v)]
            if own != joint:
                values = values.take([own[option] for option in representatives(joint)], axis)
        shape = [1] * len(scope)
        for axis, v in enumerate(table.variables):
            shape[scope.index(v)] = values.shape[axis]
        total += values.reshape(*shape, num_points)
    return Table(scope, np.moveaxis(total, -1, 0), classes)


def refined(classes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """The coarsest classes that tell apart whatever one of the given ones does."""
    if all(each == classes[0] for each in classes):
        return classes[0]
    numbers: dict[tuple[int, ...], int] = {}
    return tuple(numbers.setdefault(cell, len(numbers)) for cell in zip(*classes, strict=True))


def representatives(classes: tuple[int, ...]) -> list[int]:
    """The first option of every class."""
    return [classes.index(c) for c in range(max(classes) + 1)]


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
    taken: list[tuple[int, Table, IntArray]] = []
    for v in elimination_order(pool, sizes):
        mine = [t for t in pool if v in t.variables]
        pool = [t for t in pool if v not in t.variables]
        total = add_tables(mine, tuple(sorted({u for t in mine for u in t.variables})))
        least, column = _least(total.values, 1 + total.variables.index(v))
        options = np.array(representatives(total.classes[total.variables.index(v)]))
        left = restrict(Table(total.variables, total.values, total.classes), {v: 0})
        left = Table(left.variables, least, left.classes)
        taken.append((v, left, options[column]))
        pool.append(left)
    minimum = np.zeros(num_points)
    for table in pool:
        minimum = minimum + table.values
    rows = np.arange(num_points)
    found: dict[int, IntArray] = {}
    for v, over, best in reversed(taken):
        at = tuple(np.array(each)[found[u]] for u, each in zip(over.variables, over.classes, strict=True))
        found[v] = best[(rows, *at)]
    return minimum, found


def _least(values: FloatArray, axis: int) -> tuple[FloatArray, NDArray[np.int8]]:
    """Minimum over a short axis and where it is; of equal ones the first."""
    columns = np.moveaxis(values, axis, 0)
    least = columns[0].copy()
    at = np.zeros(least.shape, dtype=np.int8)
    for i in range(1, len(columns)):
        better = columns[i] < least
        np.copyto(least, columns[i], where=better)
        at[better] = i
    return least, at
