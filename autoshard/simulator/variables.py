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
    """Seconds over ``[points, *options of variables]``; ``label`` says which op or tensor and ``what`` kind of time."""

    variables: tuple[int, ...]
    table: FloatArray
    label: str
    what: str


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
        return _look_up([(f.variables, f.table) for f in self.factors], point, dims)

    def num_bytes(self, point: IntArray, dims: IntArray) -> tuple[FloatArray, FloatArray]:
        """(weights, kv) bytes of one instance for strategies ``(point [m], dims [m, variables])``."""
        weights = _look_up([((v,), t) for v, t in self.weights], point, dims)
        return weights, _look_up([((v,), t) for v, t in self.kv], point, dims)


def _look_up(tables: Sequence[tuple[tuple[int, ...], FloatArray]], point: IntArray, dims: IntArray) -> FloatArray:
    total = np.zeros(len(point))
    for variables, table in tables:
        flat = point.copy()
        for v, size in zip(variables, table.shape[1:], strict=True):
            flat *= size
            flat += dims[:, v]
        total += table.reshape(-1)[flat]
    return total
