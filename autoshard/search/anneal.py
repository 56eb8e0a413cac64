"""Simulated annealing of a few chains: the strongest search without a policy, so the one that RL has to beat.

Chains start from the best of a uniform sample. A proposal makes one to five edits and sometimes moves several degrees
at once (`proposals.neighbours`). With f the log throughput and temperatures falling geometrically from step to step, a
proposal is accepted with probability

    min(1, exp((f(proposal) − f(current)) / temperature))

On the log scale a temperature is a relative loss of throughput, the same for every model and cluster. Infeasible
strategies lie below every feasible one, less exceeded limits above more exceeded ones. Strategies proposed again cost
no call, so calls are left when the chains are cold; another round then starts from a new sample.
"""

import numpy as np

from autoshard.search.elites import fitness
from autoshard.search.proposals import neighbours, sample
from autoshard.search.protocol import Problem
from autoshard.search.result import Recorder, SearchResult

CHAINS = 8
"""Chains side by side. [chosen: prototype]"""
FIRST_SAMPLE = 64
"""Uniform draws, of which the best start the chains. [chosen: prototype]"""
HOT, COLD = 0.3, 0.003
"""First and last temperature: a loss of 30 % and of 0.3 % is accepted with probability 1/e. [chosen: prototype]"""
LEAST_STEPS = 50
"""Steps of a round, however few calls are left. [chosen]"""
MAX_STALE_STEPS = 25
"""Steps in a row without a new strategy after which the chains count as frozen. [chosen]"""
MAX_STALE_ROUNDS = 3
"""Rounds in a row without a new strategy after which the space counts as exhausted."""


def search(problem: Problem, *, seed: int) -> SearchResult:
    """Anneal until the budget is spent or nothing new turns up."""
    recorder = Recorder(problem)
    rng = np.random.default_rng(seed)
    stale = 0
    while recorder.calls_left and stale < MAX_STALE_ROUNDS:
        calls = recorder.calls
        _run_round(problem, recorder, rng)
        stale = stale + 1 if recorder.calls == calls else 0
    return recorder.result("anneal", seed)


def _run_round(problem: Problem, recorder: Recorder, rng: np.random.Generator) -> None:
    """Cool the chains once, as many steps as the calls left would pay if every proposal were new."""
    first = sample(problem, FIRST_SAMPLE, rng)
    value = fitness(recorder.evaluate(first))
    best = np.argsort(-value, kind="stable")[:CHAINS]
    x, value = first[best], value[best]
    num_steps = max(recorder.calls_left // CHAINS, LEAST_STEPS)
    stale = 0
    for temperature in np.geomspace(HOT, COLD, num_steps).tolist():
        calls = recorder.calls
        proposals = neighbours(problem, x, rng)
        scores = recorder.evaluate(proposals)
        stale = stale + 1 if recorder.calls == calls else 0
        if len(scores) < len(proposals) or stale == MAX_STALE_STEPS:  # the budget ended inside the step, or frozen
            return
        proposed = fitness(scores)
        accepted = np.log(rng.random(len(x))) * temperature < proposed - value
        x, value = np.where(accepted[:, None], proposals, x), np.where(accepted, proposed, value)
