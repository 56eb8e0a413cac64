"""The best distinct strategies seen: the history that the agent attends to and imitates, and the pool it mutates.

The pool keeps only the best strategy of each combination of the leading components. Without that it fills with
near-copies of one strategy (the next batch size, say), and every mutation explores the same neighbourhood.
"""

import math
from collections.abc import Iterable

import numpy as np

from autoshard.search.protocol import FloatArray, IntArray, Scores

INFEASIBLE_FITNESS = -1e3
"""Below the log of any throughput, so that a feasible strategy always outranks an infeasible one."""


def fitness(scores: Scores) -> FloatArray:
    """[n] log throughput; where infeasible, lower the more a limit is exceeded."""
    feasible = scores.throughput > 0
    log_throughput = np.log(np.where(feasible, scores.throughput, 1.0))
    return np.where(feasible, log_throughput, INFEASIBLE_FITNESS - scores.violation)


class Elites:
    """The `size` fittest strategies of those shown to it, best first.

    Two strategies whose first `num_key_components` agree compete for one place; by default only equal ones do.
    """

    def __init__(self, size: int, num_key_components: int | None = None) -> None:
        self._size = size
        self._num_key_components = num_key_components
        self._entries: list[tuple[float, tuple[int, ...]]] = []

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def strategies(self) -> IntArray:
        """[k, C] strategies, best first."""
        return np.array([strategy for _, strategy in self._entries], dtype=np.int64)

    @property
    def normalised_scores(self) -> FloatArray:
        """[k] throughput over the best's; 0 where infeasible."""
        best = self._entries[0][0] if self._entries else 0.0
        feasible = [(value, value > INFEASIBLE_FITNESS) for value, _ in self._entries]
        return np.array([math.exp(value - best) if ok else 0.0 for value, ok in feasible], dtype=np.float64)

    def update(self, x: IntArray, scores: Scores) -> None:
        """Admit the fittest of [n, C] strategies and their scores."""
        values = fitness(scores).tolist()
        self._admit(zip(values, map(tuple, x.tolist()), strict=True))

    def merge(self, other: "Elites") -> None:
        """Admit the strategies of another history."""
        self._admit(other._entries)

    def copy(self) -> "Elites":
        """An independent history of the same strategies."""
        twin = Elites(self._size, self._num_key_components)
        twin._entries = list(self._entries)
        return twin

    def _admit(self, entries: Iterable[tuple[float, tuple[int, ...]]]) -> None:
        best: dict[tuple[int, ...], tuple[float, tuple[int, ...]]] = {}
        for entry in sorted([*self._entries, *entries], key=lambda entry: (-entry[0], entry[1])):
            best.setdefault(entry[1][: self._num_key_components], entry)
            if len(best) == self._size:
                break
        self._entries = list(best.values())


class Memory:
    """What a chunk has learned besides its policy: the elite history, and the pool of strategies to mutate."""

    def __init__(self, *, history: int, pool: int, pool_key_components: int) -> None:
        self.history = Elites(history)
        self.pool = Elites(pool, pool_key_components)

    def update(self, x: IntArray, scores: Scores) -> None:
        """Learn the scores of the first strategies of x."""
        x = x[: len(scores)]
        self.history.update(x, scores)
        self.pool.update(x, scores)

    def merge(self, other: "Memory") -> None:
        """Learn what another chunk has learned."""
        self.history.merge(other.history)
        self.pool.merge(other.pool)
