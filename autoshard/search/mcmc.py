"""FlexFlow's search: Markov chains that change one component at a time (Jia, Zaharia, Aiken, MLSys 2019, §6).

A proposal gives one component another option, all equally likely, and is then made legal. With c the predicted seconds
per token, relative to the best seen, it is accepted with probability (Metropolis)

    min(1, exp(−β · (c(proposal) − c(current))))

A chain that has not improved on its best for half of its steps is given up, as in the paper, and the next one starts
from a uniform draw. A few chains run side by side so that their proposals are scored together; each goes its own way.
FlexFlow leaves β open.
"""

import numpy as np

from autoshard.search.proposals import sample, step
from autoshard.search.protocol import BoolArray, FloatArray, Problem
from autoshard.search.result import Recorder, SearchResult

BETA = 20.0
"""β: a proposal slower by 5 % of the best's time is accepted with probability 1/e. [chosen]"""
CHAINS = 8
"""Chains side by side. [chosen]"""
LEAST_STEPS = 200
"""Steps of a chain before it may be given up. [chosen]"""
MAX_STALE_STEPS = 1000 // CHAINS
"""Steps in a row without a new strategy of any chain after which the space counts as exhausted."""


def search(problem: Problem, *, seed: int) -> SearchResult:
    """Run chain after chain until the budget is spent or nothing new turns up."""
    recorder = Recorder(problem)
    rng = np.random.default_rng(seed)
    x = sample(problem, CHAINS, rng)
    scores = recorder.evaluate(x)
    current, violation = scores.throughput, scores.violation
    best, improved_at, steps = current.copy(), np.zeros(CHAINS, dtype=np.int64), np.zeros(CHAINS, dtype=np.int64)
    stale = 0
    while recorder.calls_left and stale < MAX_STALE_STEPS:
        steps += 1
        given_up = (steps > LEAST_STEPS) & (steps - 1 - improved_at > (steps - 1) / 2)
        y = step(problem, x, rng)
        if given_up.any():
            y[given_up] = sample(problem, int(given_up.sum()), rng)
            steps[given_up], improved_at[given_up], best[given_up], current[given_up] = 0, 0, 0.0, 0.0
            violation[given_up] = np.inf
        calls = recorder.calls
        scores = recorder.evaluate(y)
        if len(scores) < len(y):
            break
        stale = 0 if recorder.calls > calls else stale + 1
        nearer = scores.violation <= violation
        accepted = _accepted(current, scores.throughput, recorder.throughput, nearer, rng.random(CHAINS))
        x[accepted], current[accepted] = y[accepted], scores.throughput[accepted]
        violation[accepted] = scores.violation[accepted]
        improved = current > best
        best[improved], improved_at[improved] = current[improved], steps[improved]
    return recorder.result("mcmc", seed)


def _accepted(
    current: FloatArray, proposed: FloatArray, best: float, nearer: BoolArray, chance: FloatArray
) -> BoolArray:
    """Metropolis on relative time; an infeasible strategy has infinite time, and the `nearer` of two goes first."""
    both = (current > 0.0) & (proposed > 0.0)
    slower = np.where(both, best / np.where(both, proposed, 1.0) - best / np.where(both, current, 1.0), 0.0)
    found: BoolArray = np.where(both, chance < np.exp(np.minimum(0.0, -BETA * slower)), (proposed > 0.0) | nearer)
    found &= (proposed > 0.0) | (current <= 0.0)
    return found
