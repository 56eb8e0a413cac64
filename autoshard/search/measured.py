"""The sharding problem where an evaluation is a measurement, handed in from outside: same components, same masks."""

from collections.abc import Callable, Sequence

import numpy as np

from autoshard.search.problem import IntArray, ShardingProblem
from autoshard.search.protocol import Scores
from autoshard.sharding.strategy import Strategy
from autoshard.simulator.simulator import Simulator

Measure = Callable[[IntArray, Sequence[Strategy]], Sequence[float]]
"""From rows ``[n, C]`` and the strategies they are to tokens/s, 0 where a strategy failed."""


class MeasuredProblem(ShardingProblem):
    """A `ShardingProblem` whose scores are measured; the simulator gives points, choices and masks, and no time."""

    def __init__(self, simulator: Simulator, measure: Measure, *, budget: int) -> None:
        super().__init__(simulator, budget=budget)
        self._measure = measure

    def evaluate(self, x: IntArray) -> Scores:
        """Measure rows and count them; past the budget rows are left out, illegal ones score 0."""
        x = x[: max(self.budget - self._calls, 0)]
        self._calls += len(x)
        rows = np.flatnonzero(self.legal(x))
        throughput = np.zeros(len(x))
        if len(rows):
            throughput[rows] = self._measure(x[rows], [self.strategy(row) for row in x[rows]])
        return Scores(throughput=throughput, violation=(throughput <= 0).astype(np.float64))
