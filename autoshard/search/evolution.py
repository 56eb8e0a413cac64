"""CMA-ES over random keys: a kept evolutionary library (``cma``) as a baseline, in the same space with the same masks.

A strategy is decoded from a vector in [0, 1]^C component by component: of the options that the prefix mask allows, in
order, the one at that fraction. So every vector is a legal strategy, and neighbouring sizes of a degree are neighbours.
CMA-ES minimises the negative fitness (log throughput; what is infeasible lies below, less exceeded limits higher), and
starts anew with twice the population when it has converged (IPOP: Auger & Hansen 2005).
"""

import warnings
from typing import Any

import numpy as np

from autoshard.errors import InvalidInputError
from autoshard.search.elites import fitness
from autoshard.search.protocol import FloatArray, IntArray, Problem
from autoshard.search.result import Recorder, SearchResult

SIGMA = 0.3
"""First standard deviation of a key. [chosen: the library's advice of a third of the range]"""
POPULATION = 32
"""Strategies of a first generation. [chosen]"""
MAX_STALE_GENERATIONS = 20
"""Generations in a row without a new strategy after which a run has converged."""
MAX_STALE_STARTS = 3
"""Starts in a row without a new strategy after which the space counts as exhausted."""


def search(problem: Problem, *, seed: int) -> SearchResult:
    """Evolve until the budget is spent or nothing new turns up.

    Raises:
        InvalidInputError: when the library is not installed.
    """
    cma = _library()
    recorder = Recorder(problem)
    rng = np.random.default_rng(seed)
    stale, population = 0, POPULATION
    while recorder.calls_left and stale < MAX_STALE_STARTS:
        calls = recorder.calls
        _run(cma, problem, recorder, rng, population)
        stale = stale + 1 if recorder.calls == calls else 0
        population *= 2
    return recorder.result("evolution", seed)


def decode(problem: Problem, keys: FloatArray) -> IntArray:
    """[n, C] strategies of [n, C] keys in [0, 1]."""
    x = np.zeros((len(keys), len(problem.num_options)), dtype=np.int64)
    for position in range(x.shape[1]):
        allowed = problem.mask(x, position)
        count = allowed.sum(1)
        nth = np.minimum((keys[:, position] * count).astype(np.int64), count - 1)
        x[:, position] = (allowed.cumsum(1) > nth[:, None]).argmax(1)
    return x


def _run(cma: Any, problem: Problem, recorder: Recorder, rng: np.random.Generator, population: int) -> None:
    """One start, until it converges or the calls are used."""
    options = {
        "bounds": [0.0, 1.0],
        "popsize": population,
        "seed": int(rng.integers(1, 2**31)),
        "verbose": -9,
        "verb_log": 0,
    }
    strategy = cma.CMAEvolutionStrategy(rng.random(len(problem.num_options)), SIGMA, options)
    stale = 0
    while recorder.calls_left and stale < MAX_STALE_GENERATIONS and not strategy.stop():
        calls = recorder.calls
        keys = strategy.ask()
        value = fitness(recorder.evaluate(decode(problem, np.array(keys))))
        if len(value) < len(keys):  # the budget ended inside the generation
            return
        strategy.tell(keys, (-value).tolist())
        stale = stale + 1 if recorder.calls == calls else 0


def _library() -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import cma
    except ImportError:
        raise InvalidInputError(
            "search 'evolution' needs the package cma: pip install 'autoshard[evolution]'"
        ) from None
    return cma
