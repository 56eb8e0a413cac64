"""Runs a search on a model, lets the exact search certify it, and keeps what both found."""

import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from autoshard.api.limits import serving_limit_message
from autoshard.api.relax import limit_message, memory_message
from autoshard.errors import InvalidInputError, NoFeasiblePlanError
from autoshard.hardware import Cluster
from autoshard.ir import OpGraph
from autoshard.search.anneal import search as search_anneal
from autoshard.search.evolution import search as search_evolution
from autoshard.search.exact import ExactResult
from autoshard.search.mcmc import search as search_mcmc
from autoshard.search.megatron import search as search_megatron
from autoshard.search.policy_file import SavedPolicy
from autoshard.search.problem import KnownScores, ShardingProblem
from autoshard.search.protocol import Problem
from autoshard.search.random_search import search as search_random
from autoshard.search.relaxed import certify
from autoshard.search.result import SearchResult
from autoshard.search.rl import PAPER, RLConfig
from autoshard.search.rl import search as search_rl
from autoshard.search.state import SearchState
from autoshard.search.walk import search as search_walk
from autoshard.sharding.option import Choice
from autoshard.simulator import Simulator
from autoshard.simulator.points import IntArray, Points, distinct
from autoshard.workload import Workload


class Search(Protocol):
    """A search of a problem within its budget."""

    def __call__(self, problem: Problem, *, seed: int) -> SearchResult:
        """Search; two runs of a seed are identical."""
        ...


SEARCHES: Mapping[str, Search] = {
    "rl": search_rl,
    "rl-paper": partial(search_rl, config=PAPER, name="rl-paper"),
    "megatron": search_megatron,
    "anneal": search_anneal,
    "mcmc": search_mcmc,
    "evolution": search_evolution,
    "walk": search_walk,
    "random": search_random,
}
"""Every search but ``exact``, which is no search of a problem but of the simulator's tables."""

NUM_ALTERNATIVES = 5
"""Other degrees that a plan names, each settled exactly."""

LEARNING = {"rl": RLConfig(), "rl-paper": PAPER}
"""Searches with a policy, and their settings."""

ALGORITHMS = ("rl", "exact", *(name for name in SEARCHES if name != "rl"))


def regret_to(optimum: float, rate: float) -> float:
    """``1 - rate / optimum``, clipped at 0; below 1e-12 it is the rounding of two sums."""
    gap = 1.0 - rate / optimum
    return gap if gap > 1e-12 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """What was found: the strategy taken (``point``, ``dims``), by whom, and what each side reached (tokens/s/GPU)."""

    simulator: Simulator
    point: int
    dims: tuple[int, ...]
    algorithm: str
    seed: int
    budget: int
    calls: int
    found: float
    exact: ExactResult | None
    taken_from: str

    @property
    def exact_rate(self) -> float | None:
        """Proven optimum in tokens/s/GPU, or the bound where mixed serving or effects leave only that."""
        return None if self.exact is None else self.exact.bound / self.simulator.cluster.num_devices

    @property
    def is_bound(self) -> bool:
        """Whether `exact_rate` is a bound that exact itself did not reach."""
        return self.exact is not None and self.exact.is_bound

    def regret(self, rate: float) -> float | None:
        """``1 - rate / optimum``, clipped at 0 (rounding of the two sums aside)."""
        return regret_to(self.exact_rate, rate) if self.exact_rate else None


def degree_kinds(points: Points) -> IntArray:
    """Number of the degrees (pp, dp, tp, ep) of every point, the same whatever the batch."""
    return distinct(points.pp, points.dp, points.tp, points.ep)[1]


def make_simulator(
    graph: OpGraph,
    cluster: Cluster,
    workload: Workload,
    *,
    fixed: Mapping[str, int] | None = None,
    pinned: Mapping[str, Choice] | None = None,
    stages: tuple[int, ...] = (),
    uneven: bool = False,
    wider: tuple[str, ...] = (),
) -> Simulator:
    """A simulator, or NoFeasiblePlanError with the smallest relaxation when nothing fits in memory."""
    simulator = Simulator(
        graph, cluster, workload, fixed=fixed, pinned=pinned, stages=stages, uneven=uneven, wider=wider
    )
    if not simulator.any_fits:
        raise NoFeasiblePlanError(memory_message(simulator))
    return simulator


def no_plan_message(simulator: Simulator) -> str:
    """Why no strategy that fits is known to keep the limits."""
    if simulator.effects is not None:
        names = ", ".join(simulator.workload.effects)
        return (
            f"no strategy that fits keeps the limits under the effects {names}: raise the limit, or plan without"
            " --effects to be told the smallest change that would help"
        )
    return serving_limit_message(simulator) if simulator.limits else limit_message(simulator)


def check_policy_files(algorithm: str, warm_start: Path | None, save_policy: Path | None) -> None:
    """Raise InvalidInputError if a search without a policy is to start from one or to save it."""
    if algorithm not in LEARNING and (warm_start is not None or save_policy is not None):
        known = " and ".join(LEARNING)
        raise InvalidInputError(f"search {algorithm!r} has no policy to save or to start from; {known} have")


def new_problem(
    simulator: Simulator, algorithm: str, *, budget: int, known: KnownScores | None = None
) -> ShardingProblem:
    """The problem that a search other than ``exact`` is given, with its budget."""
    if algorithm not in SEARCHES:
        raise InvalidInputError(f"unknown search {algorithm!r}; known are {', '.join(ALGORITHMS)}")
    problem = ShardingProblem(simulator, budget=budget, known=known)
    if algorithm == "megatron":
        problem.budget = len(problem.megatron_points())
    return problem


def run_search(
    simulator: Simulator,
    algorithm: str,
    *,
    budget: int,
    seed: int,
    warm_start: Path | None = None,
    save_policy: Path | None = None,
    known: KnownScores | None = None,
) -> tuple[ShardingProblem, SearchResult]:
    """One run of a search other than ``exact``. ``megatron`` is exhaustive over degrees, whatever the budget.

    A search that learns starts from the policy in the file ``warm_start`` and writes that trained longest to
    ``save_policy``. ``known`` has scores of an interrupted run (`autoshard.api.resume`).
    """
    problem = new_problem(simulator, algorithm, budget=budget, known=known)
    check_policy_files(algorithm, warm_start, save_policy)
    if warm_start is None and save_policy is None:
        return problem, SEARCHES[algorithm](problem, seed=seed)
    warm = None if warm_start is None else SavedPolicy.load(warm_start)
    keep = None if save_policy is None else (lambda policy: policy.save(save_policy))
    return problem, search_rl(
        problem, seed=seed, config=LEARNING[algorithm], name=algorithm, warm_start=warm, keep=keep
    )


def resumable_search(
    simulator: Simulator,
    algorithm: str,
    *,
    budget: int,
    seed: int,
    state: SearchState | None,
    warm_start: Path | None = None,
    save_policy: Path | None = None,
) -> tuple[ShardingProblem, SearchResult, float]:
    """`run_search` with its seconds, continued where ``state`` says that it was interrupted.

    Of a run that had ended, result and seconds are those in the file, unless it is to save its policy.
    """
    run = run_key(algorithm, budget=budget, seed=seed, warm_start=warm_start)
    if state is not None and save_policy is None:
        problem = new_problem(simulator, algorithm, budget=budget)
        ended = state.ended(run, problem)
        if ended is not None:
            return problem, *ended
    start = time.perf_counter()
    problem, result = run_search(
        simulator, algorithm, budget=budget, seed=seed, warm_start=warm_start, save_policy=save_policy, known=state
    )
    seconds = time.perf_counter() - start
    if state is not None:
        state.end(run, result, seconds)
    return problem, result, seconds


def run_key(algorithm: str, *, budget: int, seed: int, warm_start: Path | None = None) -> str:
    """Everything that a run's result depends on besides the problem, in words."""
    parts = [algorithm, f"seed {seed}", f"budget {budget}"]
    if algorithm in LEARNING:
        parts.append(f"settings {_digest(repr(LEARNING[algorithm]).encode())}")
    if warm_start is not None and warm_start.is_file():
        parts.append(f"policy {_digest(warm_start.read_bytes())}")
    return ", ".join(parts)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:12]


def solve(
    simulator: Simulator,
    *,
    algorithm: str = "rl",
    budget: int = 4000,
    seed: int = 0,
    polish: bool = True,
    warm_start: Path | None = None,
    save_policy: Path | None = None,
    state: Path | None = None,
) -> Solution:
    """Search, certify and take the better. ``state`` is a file in which an interrupted search is continued.

    Raises:
        InvalidInputError: unknown algorithm, a budget below 1, a seed no generator takes, or another problem's state.
        NoFeasiblePlanError: when no strategy meets the limit (proven), or the search found none and may not polish.
    """
    if algorithm not in ALGORITHMS:
        raise InvalidInputError(f"unknown search {algorithm!r}; known are {', '.join(ALGORITHMS)}")
    if budget < 1:
        raise InvalidInputError(f"budget={budget} must be at least 1 simulator call")
    if not 0 <= seed < 2**63:
        raise InvalidInputError(f"seed={seed} must be a whole number from 0 to 2^63 - 1")
    check_policy_files(algorithm, warm_start, save_policy)
    if state is not None and algorithm == "exact":
        raise InvalidInputError("search 'exact' evaluates no strategies one by one: it has no state to keep")
    resumed = None if state is None else SearchState(state, simulator)
    exact = certify(simulator, 1 + NUM_ALTERNATIVES, degree_kinds(simulator.points))
    if exact.bound <= 0:
        raise NoFeasiblePlanError(no_plan_message(simulator))
    num = simulator.cluster.num_devices
    optimum = exact.tokens_per_s / num
    common: dict[str, Any] = {
        "simulator": simulator,
        "algorithm": algorithm,
        "seed": seed,
        "budget": budget,
        "exact": exact,
    }
    if algorithm == "exact":
        if exact.point is None or exact.dims is None:
            raise NoFeasiblePlanError(no_plan_message(simulator))
        return Solution(
            **common,
            point=exact.point,
            dims=exact.dims,
            calls=0,
            found=optimum,
            taken_from="exact",
        )
    problem, result, _ = resumable_search(
        simulator,
        algorithm,
        budget=budget,
        seed=seed,
        state=resumed,
        warm_start=warm_start,
        save_policy=save_policy,
    )
    better = result.best is None or result.throughput < optimum * (1 - 1e-12)
    if result.best is None and exact.point is None:
        raise NoFeasiblePlanError(no_plan_message(simulator))
    if better and not polish and result.best is None:
        raise NoFeasiblePlanError(f"{algorithm} found no feasible strategy in {result.calls} calls (seed {seed})")
    if better and polish and exact.point is not None and exact.dims is not None:
        point, dims, taken = exact.point, exact.dims, "exact"
    else:
        assert result.best is not None
        row = np.array(result.best, dtype=np.int64)
        point = int(problem.points_of(row[None, :])[0])
        dims, taken = tuple(int(o) for o in row[problem.num_degree_components :]), "search"
    return Solution(
        **common,
        point=point,
        dims=dims,
        calls=result.calls,
        found=result.throughput,
        taken_from=taken,
    )
