"""What a search algorithm may know of the problem it solves: components, masks, legality and counted evaluations.

A strategy is a row of option indices, one per component, in a fixed order: the degrees (group, pp, tp, ep, batch),
then the residual's layout and one choice per fused op. Masks are *exact prefix masks*: filling the components in order
and taking any allowed option at each gives a legal strategy. A legal strategy may still be infeasible, which only an
evaluation tells.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Scores:
    """What the simulator says of n strategies.

    Attributes:
        throughput: [n] tokens/s/GPU, 0 where infeasible.
        violation: [n] relative excess of memory or of a latency limit, 0 where feasible, never negative.
    """

    throughput: FloatArray
    violation: FloatArray

    def __len__(self) -> int:
        """The number of strategies scored."""
        return len(self.throughput)


class Problem(Protocol):
    """A sharding problem as a search algorithm sees it; shapes use n strategies and C components."""

    @property
    def component_names(self) -> tuple[str, ...]:
        """The components in the order in which they are filled."""
        ...

    @property
    def num_options(self) -> IntArray:
        """[C] options of each component."""
        ...

    @property
    def num_degree_components(self) -> int:
        """How many leading components are degrees, whose options are sizes in ascending order."""
        ...

    @property
    def budget(self) -> int:
        """Strategies that may be evaluated in all."""
        ...

    @property
    def calls(self) -> int:
        """Strategies evaluated so far, counted by the problem itself, whoever asked."""
        ...

    @property
    def component_masks(self) -> BoolArray:
        """[C, max(num_options)] options that some legal strategy may have, each component for itself; no exact mask."""
        ...

    def mask(self, x: IntArray, position: int) -> BoolArray:
        """Allowed options of one component, [n, max(num_options)], for [n, C] filled left of it; at least one each."""
        ...

    def legal(self, x: IntArray) -> BoolArray:
        """[n] whether every rule holds (not whether limits that need an evaluation do); costs no call."""
        ...

    def with_legal_choices(self, x: IntArray) -> IntArray:
        """[n, C] at legal degrees with every choice moved to the nearest that the rules allow, memory aside."""
        ...

    def nearest_choices(self, x: IntArray) -> IntArray:
        """[n, C] at legal degrees with one choice after the other moved to the nearest that `mask` allows."""
        ...

    def evaluate(self, x: IntArray) -> Scores:
        """Score and count; with fewer than n calls left, evaluates and returns only the first ones.

        An illegal strategy counts like any other and scores as infeasible.
        """
        ...

    def megatron_points(self) -> IntArray:
        """[m, C] Megatron's choices at every legal point of the degrees, under every residual and dispatch."""
        ...
