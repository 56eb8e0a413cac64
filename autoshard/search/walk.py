"""A random walk: every step makes one masked edit and is taken whatever it scores. The baseline of local moves alone.

It differs from `random` in that the degrees are left slowly, and from `mcmc` in that nothing is ever rejected.
"""

import numpy as np

from autoshard.search.proposals import sample, step
from autoshard.search.protocol import Problem
from autoshard.search.result import Recorder, SearchResult

MAX_STALE_STEPS = 1000
"""Steps in a row without a new strategy after which the space counts as exhausted."""


def search(problem: Problem, *, seed: int) -> SearchResult:
    """Walk until the budget is spent or nothing new turns up; strategies seen before cost no call."""
    recorder = Recorder(problem)
    rng = np.random.default_rng(seed)
    x = sample(problem, 1, rng)
    recorder.evaluate(x)
    stale = 0
    while recorder.calls_left and stale < MAX_STALE_STEPS:
        calls = recorder.calls
        x = step(problem, x, rng)
        recorder.evaluate(x)
        stale = stale + 1 if recorder.calls == calls else 0
    return recorder.result("walk", seed)
