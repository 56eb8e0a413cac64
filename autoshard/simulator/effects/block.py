"""Seconds of a block of one strategy batch, op by op and tensor by tensor: what the laws of effects are applied to.

Arrays are ``[levels, m]``: by level of skew where the op is one of the routed experts, else ``[1, m]``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autoshard.ir import Activation, Block, ExpertsLinear, FusedOp
from autoshard.simulator.variables import Component, Factor

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


def is_routed(op: FusedOp) -> bool:
    """Whether an op runs on (token, expert) rows."""
    return isinstance(op, ExpertsLinear) or (isinstance(op, Activation) and op.routed)


def has_experts(block: Block) -> bool:
    """Whether a block has routed experts."""
    return any(is_routed(op) for op in block.ops)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockSeconds:
    """Seconds by name of op (``compute``, ``inside``: its internal collectives) and of tensor (``moves``).

    ``inside_far`` and ``moves_far`` are the parts of collectives whose group spans nodes; without them nothing is said.
    """

    compute: Mapping[str, FloatArray]
    inside: Mapping[str, FloatArray]
    moves: Mapping[str, FloatArray]
    inside_far: Mapping[str, FloatArray]
    moves_far: Mapping[str, FloatArray]

    def total(self) -> FloatArray:
        """Their sum: the additive time of the block."""
        parts = [*self.compute.values(), *self.inside.values(), *self.moves.values()]
        return sum_of(parts, like=next(iter(self.compute.values())))


def sum_of(parts: Sequence[FloatArray], like: FloatArray) -> FloatArray:
    """Sum of arrays ``[levels or 1, m]``, zeros ``[1, m]`` where there is none."""
    total = np.zeros((1, like.shape[-1]))
    for part in parts:
        total = total + part
    return total


class PricedBlock:
    """A block's factors by what they are of.

    ``levels`` are the factors of routed ops at every level of skew (by op name), ``far`` is the component with only
    those collectives whose group spans nodes.
    """

    def __init__(
        self,
        block: Block,
        component: Component,
        *,
        levels: Sequence[Mapping[str, Factor]] = (),
        far: Component | None = None,
    ) -> None:
        self.block, self.component = block, component
        self.levels = tuple(levels)
        self.num_levels = max(len(self.levels), 1) if has_experts(block) else 1
        self._far = far

    def compute_factors(self, factor: Factor) -> tuple[Factor, ...]:
        """A factor of computation at every level, or itself alone."""
        if not self.levels or factor.what == "collective" or factor.label not in self.levels[0]:
            return (factor,)
        return tuple(level[factor.label] for level in self.levels)

    def at(self, point: IntArray, dims: IntArray) -> BlockSeconds:
        """Seconds of strategies ``(point [m], dims [m, variables])``."""
        compute: dict[str, FloatArray] = {}
        inside: dict[str, FloatArray] = {}
        moves: dict[str, FloatArray] = {}
        for factor in self.component.factors:
            if factor.what != "collective":
                compute[factor.label] = np.stack([f.at(point, dims) for f in self.compute_factors(factor)])
            else:
                (moves if factor.moves else inside)[factor.label] = factor.at(point, dims)[None]
        far: tuple[dict[str, FloatArray], dict[str, FloatArray]] = ({}, {})
        for factor in () if self._far is None else self._far.factors:
            if factor.what == "collective":
                far[factor.moves][factor.label] = factor.at(point, dims)[None]
        return BlockSeconds(compute=compute, inside=inside, moves=moves, inside_far=far[0], moves_far=far[1])
