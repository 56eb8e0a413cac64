"""Search in a few large rounds, for evaluations that are dear to start: each round is one call of `evaluate`.

The first round has Megatron's choices at the degrees (at most half of it) and uniform draws, every later one mutations
of the best so far. Half of the budget goes to the first round, the rest is split evenly.
"""

import numpy as np

from autoshard.search.elites import Elites
from autoshard.search.proposals import mutate, sample
from autoshard.search.protocol import IntArray, Problem
from autoshard.search.result import Recorder, SearchResult

LATER_ROUNDS = 3
"""Rounds of mutations. [chosen]"""
POOL = 4
"""Best strategies that are mutated. [chosen]"""
TRIES = 8
"""Draws for each strategy of a round, to find as many new ones. [chosen]"""


def search(problem: Problem, *, seed: int) -> SearchResult:
    """Evaluate the rounds and return the best."""
    recorder, rng, elites = Recorder(problem), np.random.default_rng(seed), Elites(POOL)
    size = (problem.budget + 1) // 2
    megatron = problem.megatron_points()
    chosen = megatron[np.sort(rng.permutation(len(megatron))[: max(size // 2, 1)])]
    batch = _new(recorder, np.concatenate([chosen, sample(problem, size * TRIES, rng)]), size)
    for later in range(LATER_ROUNDS, -1, -1):
        if len(batch):
            elites.update(batch, recorder.evaluate(batch))
        if later and recorder.calls_left and len(elites):
            size = -(-recorder.calls_left // later)
            batch = _new(recorder, mutate(problem, elites.strategies, size * TRIES, rng), size)
    return recorder.result("rounds", seed)


def _new(recorder: Recorder, x: IntArray, most: int) -> IntArray:
    """The first distinct strategies that were not evaluated yet."""
    _, first = np.unique(x, axis=0, return_index=True)
    x = x[np.sort(first)]
    return x[[not seen for seen in recorder.seen(x)]][:most]
