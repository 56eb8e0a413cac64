r"""`exact` under costs that are not additive: a bound, and the best strategy that the additive searches lead to.

Every mode of the step (`autoshard.simulator.effects.model`) is bounded by additive problems whose step is never
longer, one for each weight :math:`\lambda`. A mode's bound is the largest over points of the least over weights; the
weights are tried only at the `NUM_REFINED` points that are best at the first of them, since the others lie below the
last of those. The largest over modes bounds every strategy. Candidates are the additive optimum and the optima of all
these problems; they are evaluated at the true cost. Where the best of them reaches the bound it is the proven optimum.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from autoshard.search.exact import ExactResult, ExactSearch
from autoshard.simulator.effects.model import TWO_BATCH
from autoshard.simulator.simulator import Simulator

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
WEIGHTS = (1.0, 0.75, 0.5, 0.25, 0.0)
"""Weights of a mode with overlapping phases; 1 (all of the computation, little of the moves) comes first."""
NUM_REFINED = 24
"""Points of a mode whose bound is the least over all weights."""
NUM_CANDIDATES = 2
"""Points of a mode whose optima at the other weights are evaluated too."""
ROUNDING = 1e-9
"""Relative room between a bound and what reaches it: sums taken in another order."""


@dataclass(slots=True)
class _Known:
    """Strategies evaluated at the true cost: the best of every point, tokens/s and options."""

    simulator: Simulator
    values: dict[int, float] = field(default_factory=dict)
    dims: dict[int, tuple[int, ...]] = field(default_factory=dict)

    def add(self, dims_of: Mapping[int, tuple[int, ...]]) -> None:
        """Evaluate a strategy of each of some points."""
        if not dims_of:
            return
        point = np.array(list(dims_of), dtype=np.int64)
        rates = self.simulator.evaluate(point, np.array(list(dims_of.values()), dtype=np.int64)).tokens_per_s
        for i, rate in zip(dims_of, rates.tolist(), strict=True):
            if rate > self.values.get(i, 0.0):
                self.values[i], self.dims[i] = rate, dims_of[i]

    def add_at(self, search: ExactSearch, points: IntArray) -> None:
        """Evaluate an additive problem's best strategies of some points."""
        found = {int(i): search.best_at(int(i)) for i in points}
        self.add({i: best[1] for i, best in found.items() if best is not None})


def certify(simulator: Simulator, num_best: int = 1, kinds: IntArray | None = None) -> ExactResult:
    """`ExactSearch.run`, or its bound and best candidate where the workload has effects.

    ``tokens_per_s`` is then what the best candidate reaches and ``bound`` what no strategy exceeds; ``best_points`` are
    the best candidates of the ``num_best`` best kinds, not proven.
    """
    effects = simulator.effects
    if effects is None:
        return ExactSearch(simulator).run(num_best, kinds)
    kinds = np.arange(len(simulator.points)) if kinds is None else kinds
    known, bound, opened = _Known(simulator), 0.0, 0
    known.add(ExactSearch(simulator.with_parts(simulator.parts)).run(num_best, kinds).dims_of)
    for mode in effects.modes:
        weights = WEIGHTS if mode == TWO_BATCH or "overlap" in effects.effects else WEIGHTS[:1]
        searches = [ExactSearch(simulator.with_parts(effects.relaxed(mode, w))) for w in weights]
        first = searches[0].run(min(NUM_REFINED, len(simulator.points)))
        known.add(first.dims_of)
        opened += first.points_opened
        top = np.array(first.best_points, dtype=np.int64)
        if len(top) == 0:
            continue
        least = first.values[top]
        for search in searches[1:]:
            known.add_at(search, top[:NUM_CANDIDATES])
            least = np.minimum(least, search.bounds_at(top))
        rest = float(first.values[top[-1]]) if len(top) == NUM_REFINED else 0.0
        bound = max(bound, float(least.max()), rest)
    return _result(simulator, known, bound, num_best, kinds, opened)


def _result(
    simulator: Simulator, known: _Known, bound: float, num_best: int, kinds: IntArray, opened: int
) -> ExactResult:
    values = np.zeros(len(simulator.points))
    for i, value in known.values.items():
        values[i] = value
    order = [int(i) for i in np.argsort(-values, kind="stable")[: len(known.values)]]
    firsts = {int(kinds[i]): i for i in reversed(order)}
    reached = float(values.max(initial=0.0))
    assert bound >= reached * (1.0 - ROUNDING), f"a strategy of {reached} tokens/s exceeds the bound {bound}"
    return ExactResult(
        point=order[0] if order else None,
        dims=known.dims[order[0]] if order else None,
        tokens_per_s=reached,
        bound=reached if bound <= reached * (1.0 + ROUNDING) else bound,
        values=values,
        dims_of=known.dims,
        best_points=tuple(i for i in order if firsts[int(kinds[i])] == i)[:num_best],
        points_opened=opened,
    )
