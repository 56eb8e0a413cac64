"""Random search: uniform draws through the masks until the budget is spent. The baseline that masks alone give."""

import numpy as np

from autoshard.search.proposals import sample
from autoshard.search.protocol import Problem
from autoshard.search.result import Recorder, SearchResult

BATCH = 500
"""Draws per evaluation; only memory and speed depend on it."""
MAX_STALE_BATCHES = 10
"""Batches in a row without a new strategy after which the space counts as exhausted."""


def search(problem: Problem, *, seed: int) -> SearchResult:
    """Evaluate uniformly drawn legal strategies, none twice, and return the best."""
    recorder = Recorder(problem)
    rng = np.random.default_rng(seed)
    stale = 0
    while recorder.calls_left and stale < MAX_STALE_BATCHES:
        calls = recorder.calls
        recorder.evaluate(sample(problem, BATCH, rng))
        stale = stale + 1 if recorder.calls == calls else 0
    return recorder.result("random", seed)
