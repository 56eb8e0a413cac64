"""FlexFlow's search: a Markov chain that changes one component at a time (Jia, Zaharia, Aiken, MLSys 2019, §6).

A proposal gives one component another option, all equally likely. With c the predicted seconds per token, relative to
the best seen, it is accepted with probability (Metropolis)

    min(1, exp(−β · (c(proposal) − c(current))))

A chain that has not improved on its best for half of its steps is given up, as in the paper, and the next one starts
from a uniform draw. FlexFlow leaves β open.
"""

import math

import numpy as np

from autoshard.search.proposals import sample, step
from autoshard.search.protocol import Problem
from autoshard.search.result import Recorder, SearchResult

BETA = 20.0
"""β: a proposal slower by 5 % of the best's time is accepted with probability 1/e. [chosen]"""
LEAST_STEPS = 200
"""Steps of a chain before it may be given up. [chosen]"""
MAX_STALE_STEPS = 1000
"""Steps in a row without a new strategy after which the space counts as exhausted."""


def search(problem: Problem, *, seed: int) -> SearchResult:
    """Run chain after chain until the budget is spent or nothing new turns up."""
    recorder = Recorder(problem)
    rng = np.random.default_rng(seed)
    stale = 0
    while recorder.calls_left and stale < MAX_STALE_STEPS:
        stale = _run_chain(problem, recorder, rng, stale)
    return recorder.result("mcmc", seed)


def _run_chain(problem: Problem, recorder: Recorder, rng: np.random.Generator, stale: int) -> int:
    """Run one chain until it is given up; returns how many steps ago a new strategy was last seen."""
    x = sample(problem, 1, rng)
    scores = recorder.evaluate(x)
    current, violation = float(scores.throughput[0]), float(scores.violation[0])
    best, improved_at, steps = current, 0, 0
    while recorder.calls_left and stale < MAX_STALE_STEPS:
        if steps >= LEAST_STEPS and steps - improved_at > steps / 2:
            break
        steps += 1
        calls = recorder.calls
        y = step(problem, x, rng)
        scores = recorder.evaluate(y)
        throughput, exceeded = float(scores.throughput[0]), float(scores.violation[0])
        stale = stale + 1 if recorder.calls == calls else 0
        if _accepted(current, throughput, recorder.throughput, exceeded <= violation, rng.random()):
            x, current, violation = y, throughput, exceeded
        if current > best:
            best, improved_at = current, steps
    return stale


def _accepted(current: float, proposed: float, best: float, nearer: bool, chance: float) -> bool:
    """Metropolis on relative time; an infeasible strategy has infinite time, and the `nearer` of two goes first."""
    if proposed <= 0.0:
        return current <= 0.0 and nearer
    if current <= 0.0:
        return True
    return chance < math.exp(min(0.0, BETA * (best / current - best / proposed)))
