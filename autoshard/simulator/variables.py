"""The choice variables of a strategy and the factor tables over them: where additive costs live.

A `Variable` is one sharding choice. A `Factor` gives seconds for every combination of a few variables' options at every
degree point. A component (prologue, a kind of block, epilogue, the send between stages) is a sum of factors for its
time and of per-variable tables for its memory. The whole cost of a strategy is looked up, not computed, so evaluating
many is fast, and the exact search minimises the very tables that `evaluate` reads.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autoshard.sharding.layout import Layout
from autoshard.sharding.option import Choice

ILLEGAL_S = 1e9
"""Seconds that stand for a combination no rule allows; finite, so that sums and maxima stay numbers."""

ILLEGAL_BYTES = 1e30
"""Bytes that stand for "no legal option", finite for the same reason."""

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """One choice: its key, its options in order, and where each is legal, ``[points, options]``.

    Legality that depends on the residual's layout is a factor entry of `ILLEGAL_S`, besides ``needs_residual`` for
    masks: the residual's layout with which each option goes, None for any.
    """

    key: str
    choices: tuple[Choice, ...]
    legal: BoolArray
    needs_residual: tuple[Layout | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Factor:
    """Seconds over ``[points, *classes of variables]``; ``label`` says which op or tensor and ``what`` kind of time.

    ``classes`` says, per variable, which column of its axis each option has: options that this factor cannot tell
    apart (both need the tensor whole, say) share one. Empty: every option has its own. ``moves`` tells a tensor's way
    between ops from the collectives inside one op.
    """

    variables: tuple[int, ...]
    table: FloatArray
    label: str
    what: str
    classes: tuple[tuple[int, ...], ...] = ()
    moves: bool = False

    def at(self, point: IntArray, dims: IntArray) -> FloatArray:
        """Seconds of strategies ``(point [m], dims [m, all variables])``."""
        columns = [dims[:, v] for v in self.variables]
        if self.classes:
            columns = [np.array(each)[column] for each, column in zip(self.classes, columns, strict=True)]
        found: FloatArray = self.table[(point, *columns)]
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """A part of a stage: its factors (seconds of one pass), and bytes per variable ``[points, options]``.

    ``weights`` and ``kv`` hold (variable, table) pairs for one instance.
    """

    name: str
    factors: tuple[Factor, ...]
    weights: tuple[tuple[int, FloatArray], ...]
    kv: tuple[tuple[int, FloatArray], ...]

    def variables(self) -> tuple[int, ...]:
        """Indices of the variables this component depends on."""
        found = {v for f in self.factors for v in f.variables}
        found |= {v for v, _ in (*self.weights, *self.kv)}
        return tuple(sorted(found))

    def seconds(self, point: IntArray, dims: IntArray) -> FloatArray:
        """Time of one pass for strategies ``(point [m], dims [m, variables])``."""
        total = np.zeros(len(point))
        for factor in self.factors:
            total += factor.at(point, dims)
        return total

    def num_bytes(self, point: IntArray, dims: IntArray) -> tuple[FloatArray, FloatArray]:
        """(weights, kv) bytes of one instance for strategies ``(point [m], dims [m, variables])``."""
        return _sum_at(self.weights, point, dims), _sum_at(self.kv, point, dims)


def _sum_at(tables: Sequence[tuple[int, FloatArray]], point: IntArray, dims: IntArray) -> FloatArray:
    total = np.zeros(len(point))
    for v, table in tables:
        total += table[point, dims[:, v]]
    return total
