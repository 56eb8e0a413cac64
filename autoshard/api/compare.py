"""All searches in the same space, over seeds, against the proven optimum."""

import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from autoshard.api.solve import ALGORITHMS, no_plan_message, regret_to, resumable_search
from autoshard.errors import InvalidInputError, NoFeasiblePlanError
from autoshard.search.relaxed import certify
from autoshard.search.state import SearchState
from autoshard.search.untied import untied_bound
from autoshard.simulator import Simulator

SEEDLESS = ("exact", "megatron")
"""Searches that are exhaustive: one run says it all."""


def check_runs(methods: Sequence[str], *, seeds: int, budget: int) -> None:
    """Raise InvalidInputError for no or an unknown search, or fewer than one seed or call."""
    for method in methods:
        if method not in ALGORITHMS:
            raise InvalidInputError(f"unknown search {method!r}; known are {', '.join(ALGORITHMS)}")
    if not methods:
        raise InvalidInputError(f"no methods to compare; known are {', '.join(ALGORITHMS)}")
    if seeds < 1:
        raise InvalidInputError(f"seeds={seeds} must be at least 1")
    if budget < 1:
        raise InvalidInputError(f"budget={budget} must be at least 1 simulator call")


def compare(
    simulator: Simulator,
    *,
    methods: Sequence[str] = ALGORITHMS,
    seeds: int = 10,
    budget: int = 4000,
    state: Path | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Run every method ``seeds`` times; regret is ``1 - value / optimum``, clipped at 0 (1 if it found nothing).

    Where the workload has effects, ``exact`` is the best candidate that additive searches lead to, beside its bound;
    wherever it is a bound, regret is against the best that any run or ``exact`` found, and ``gap_to_bound`` against the
    bound.

    ``untied_bound`` is what choices of each layer for itself, in place of one for all repeats of a block, could reach
    at most (`autoshard.search.untied`; None under effects).

    ``state`` is a file that keeps what has run, so that an interrupted comparison goes on where it was.

    Raises:
        InvalidInputError: for an unknown method, no seed or call, or another problem's state.
        NoFeasiblePlanError: when no strategy meets the limits (proven), or under effects no run found one.
    """
    check_runs(methods, seeds=seeds, budget=budget)
    num_devices = simulator.cluster.num_devices
    kept = None if state is None else SearchState(state, simulator)
    progress("exact")
    start = time.perf_counter()
    exact = certify(simulator)
    exact_s = time.perf_counter() - start
    if exact.bound <= 0:
        raise NoFeasiblePlanError(no_plan_message(simulator))
    optimum = exact.tokens_per_s / num_devices
    untied = None if simulator.effects is not None else untied_bound(simulator, exact.tokens_per_s) / num_devices
    rates: dict[str, list[dict[str, Any]]] = {}
    for method in methods:
        rates[method] = []
        for seed in range(1 if method in SEEDLESS else seeds):
            progress(f"{method}, seed {seed}")
            if method == "exact":
                rate, calls, seconds = optimum, 0, exact_s
            else:
                _, result, seconds = resumable_search(simulator, method, budget=budget, seed=seed, state=kept)
                rate, calls = result.throughput, result.calls
            rates[method].append({"seed": seed, "tokens_per_s_per_gpu": rate, "calls": calls, "seconds": seconds})
    bound = exact.bound / num_devices
    best = optimum
    if exact.is_bound:
        best = max([optimum, *(run["tokens_per_s_per_gpu"] for runs in rates.values() for run in runs)])
    if best <= 0:
        raise NoFeasiblePlanError(no_plan_message(simulator))
    found = {method: _summary(runs, best, bound) for method, runs in rates.items()}
    return {
        "model": simulator.graph.model_name,
        "cluster": simulator.cluster.name,
        "effects": list(simulator.workload.effects),
        "budget": budget,
        "degree_points": len(simulator.points),
        "exact": {
            "tokens_per_s_per_gpu": optimum,
            "bound_tokens_per_s_per_gpu": bound,
            "is_bound": exact.is_bound,
            "untied_bound_tokens_per_s_per_gpu": untied,
            "seconds": exact_s,
        },
        "best_known_tokens_per_s_per_gpu": best,
        "methods": found,
    }


def _summary(runs: list[dict[str, Any]], best: float, bound: float) -> dict[str, Any]:
    """Runs with their regrets, and the median and worst."""
    for run in runs:
        run["regret"] = regret_to(best, run["tokens_per_s_per_gpu"])
        run["gap_to_bound"] = regret_to(bound, run["tokens_per_s_per_gpu"])
    regrets = [run["regret"] for run in runs]
    return {
        "runs": runs,
        "median_regret": statistics.median(regrets),
        "worst_regret": max(regrets),
        "median_gap_to_bound": statistics.median(run["gap_to_bound"] for run in runs),
    }
