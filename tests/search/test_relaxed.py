"""Where costs are not additive the exact search gives a bound: never below brute force, and often equal to it."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from autoshard.api.compare import compare
from autoshard.api.solve import solve
from autoshard.errors import InvalidInputError, NoFeasiblePlanError
from autoshard.hardware import parse_cluster
from autoshard.search.exact import ExactSearch
from autoshard.search.relaxed import WEIGHTS, certify
from autoshard.simulator import Simulator
from autoshard.simulator.effects.model import TWO_BATCH
from autoshard.workload import Workload
from tests.search.test_exact import FIXES, _byte_range, brute_force, random_pins, tiny_cluster
from tests.simulator.test_effects import SharedMaker

SETS = [
    ("overlap",),
    ("two-batch",),
    ("skew",),
    ("overlap", "contention"),
    ("two-batch", "contention", "skew"),
    ("overlap", "two-batch", "contention", "skew"),
]


@pytest.mark.wide
@given(
    kinds=st.sampled_from(["m", "mm", "dm", "mmm"]),
    fixed=st.sampled_from([*FIXES, {"dp": 4, "batch": 16}]),
    phase=st.sampled_from(["decode", "prefill"]),
    effects=st.sampled_from(SETS),
    bandwidth=st.sampled_from([2e9, 4.5e11]),
    slack=st.sampled_from([0.1, 5.0]),
    seed=st.integers(0, 10**6),
)
@settings(max_examples=25)
def test_the_bound_is_never_below_brute_force(kinds, fixed, phase, effects, bandwidth, slack, seed) -> None:
    assume("pp" not in fixed or len(kinds) > 1)
    graph = SharedMaker(hidden=512, intermediate=544, experts=8).graph(kinds)
    workload = Workload(phase=phase, context=512, effects=effects)
    pinned = random_pins(graph, seed, free=6)
    try:
        roomy = Simulator(graph, tiny_cluster(4, 1e12, bandwidth, 2), workload, fixed=fixed, pinned=pinned)
    except InvalidInputError:
        assume(False)
    least, most = _byte_range(roomy)
    cluster = tiny_cluster(4, least + slack * (most - least) + 1.0, bandwidth, 2)
    sim = Simulator(graph, cluster, workload, fixed=fixed, pinned=pinned)
    best = brute_force(sim)
    found = certify(sim)
    assert found.bound >= best * (1 - 1e-9)
    assert found.tokens_per_s <= best * (1 + 1e-9)
    if found.point is not None:
        e = sim.evaluate(np.array([found.point]), np.array([found.dims]))
        assert float(e.tokens_per_s[0]) == pytest.approx(found.tokens_per_s, rel=1e-12)
    if effects == ("skew",) and "pp" not in fixed:  # one stage: a sum of factors still, so the optimum is proven
        assert found.tokens_per_s == pytest.approx(best, rel=1e-9) == found.bound


def test_the_bound_of_one_problem_of_every_kind() -> None:
    """As above for one problem each, with memory to spare: all of it in two seconds."""
    for effects, phase in ((SETS[5], "decode"), (SETS[1], "prefill")):
        graph = SharedMaker(hidden=512, intermediate=544, experts=8).graph("mm")
        workload = Workload(phase=phase, context=512, effects=effects)  # type: ignore[arg-type]
        pinned = random_pins(graph, 1, free=4)
        sim = Simulator(graph, tiny_cluster(4, 1e12, 2e9, 2), workload, fixed=FIXES[2], pinned=pinned)
        best, found = brute_force(sim), certify(sim)
        assert found.tokens_per_s <= best * (1 + 1e-9)
        assert best * (1 - 1e-9) <= found.bound <= best * 1.5


@pytest.mark.parametrize("effects", SETS[3:])
def test_every_relaxation_is_never_slower_than_the_step(effects: tuple[str, ...]) -> None:
    """Strategy by strategy, at every weight, against the mode it relaxes."""
    graph = SharedMaker(hidden=512, intermediate=544, experts=8).graph("dmm")
    sim = Simulator(graph, tiny_cluster(4, 1e12, 2e9, 2), Workload(context=512, effects=effects), fixed={"pp": 2})
    rng = np.random.default_rng(0)
    point = rng.integers(0, len(sim.points), 200)
    dims = np.array([[rng.choice(np.flatnonzero(v.legal[p])) for v in sim.variables] for p in point])
    modes = sim.effects._modes(point, dims)
    for mode, step_s in modes.items():
        real = (step_s < 1e9) & ((mode != TWO_BATCH) | (sim.points.sequences[point] > 1))
        assert real.sum() > 20
        for weight in (*WEIGHTS, rng.random(len(sim.points))):
            twin = sim.with_parts(sim.effects.relaxed(mode, weight))
            relaxed = twin.evaluate(point, dims).step_s
            assert np.all(relaxed[real] <= step_s[real] * (1 + 1e-9))


def small(effects: tuple[str, ...], **limits: float) -> Simulator:
    graph = SharedMaker(hidden=2048, intermediate=2080, experts=8).graph("mm")
    cluster = replace(parse_cluster("H100x8"), devices_per_node=2)
    return Simulator(graph, cluster, Workload(context=512, effects=effects, **limits), fixed={"pp": 1, "tp": 2})


def test_points_are_bounded_by_the_best_of_all_choices() -> None:
    sim = small(())
    bounds = ExactSearch(sim).bounds_at(np.arange(len(sim.points)))
    assert bounds == pytest.approx(ExactSearch(sim).run(everywhere=True).values, rel=1e-9)  # all fits


def test_without_effects_it_is_the_exact_search() -> None:
    sim = small(())
    found, exact = certify(sim, 3), ExactSearch(sim).run(3)
    assert (found.point, found.dims, found.bound, found.best_points) == (
        exact.point,
        exact.dims,
        exact.bound,
        exact.best_points,
    )


def test_a_plan_takes_the_better_of_search_and_candidates_and_says_bound() -> None:
    sim = small(("overlap", "contention"))
    solution = solve(sim, algorithm="random", budget=40)
    assert solution.exact is not None and solution.exact_rate is not None
    rate = sim.evaluate(np.array([solution.point]), np.array([solution.dims])).tokens_per_s[0] / 8
    assert rate == pytest.approx(max(solution.found, solution.exact.tokens_per_s / 8), rel=1e-12)
    assert solution.taken_from == "exact" and solution.found < rate
    assert rate <= solution.exact_rate
    assert solution.is_bound == (solution.exact.bound > solution.exact.tokens_per_s * (1 + 1e-12))
    alone = solve(sim, algorithm="random", budget=40, polish=False)
    assert alone.taken_from == "search" and alone.found == solution.found


def test_a_limit_that_nothing_meets_names_the_effects() -> None:
    with pytest.raises(NoFeasiblePlanError, match="under the effects overlap"):
        solve(small(("overlap",), tpot_ms=0.001))


def test_compare_measures_regret_to_the_best_known_and_the_gap_to_the_bound() -> None:
    data = compare(small(("overlap",)), methods=("random", "megatron"), seeds=2, budget=60)
    best, exact = data["best_known_tokens_per_s_per_gpu"], data["exact"]
    runs = [r for m in data["methods"].values() for r in m["runs"]]
    assert best == max(exact["tokens_per_s_per_gpu"], *(r["tokens_per_s_per_gpu"] for r in runs))
    assert exact["bound_tokens_per_s_per_gpu"] >= best
    for r in runs:
        assert r["regret"] == pytest.approx(1 - r["tokens_per_s_per_gpu"] / best, abs=1e-12)
        gap = 1 - r["tokens_per_s_per_gpu"] / exact["bound_tokens_per_s_per_gpu"]
        assert r["gap_to_bound"] == pytest.approx(gap, abs=1e-12)
    plain = compare(small(()), methods=("megatron",), seeds=1, budget=60)
    assert plain["exact"]["is_bound"] is False
    assert plain["best_known_tokens_per_s_per_gpu"] == plain["exact"]["tokens_per_s_per_gpu"]


def test_compare_runs_where_exact_has_a_bound_and_no_strategy(monkeypatch: pytest.MonkeyPatch) -> None:
    sim = small(("overlap",))
    alone = replace(certify(sim), point=None, dims=None, tokens_per_s=0.0)
    monkeypatch.setattr("autoshard.api.compare.certify", lambda _: alone)
    data = compare(sim, methods=("random", "exact"), seeds=1, budget=60)
    assert data["exact"]["tokens_per_s_per_gpu"] == 0.0 and data["exact"]["is_bound"]
    assert data["methods"]["random"]["median_regret"] == 0.0 and data["methods"]["exact"]["median_regret"] == 1.0
    monkeypatch.setattr("autoshard.api.compare.certify", lambda _: replace(alone, bound=0.0))
    with pytest.raises(NoFeasiblePlanError, match="under the effects overlap"):
        compare(sim, methods=("random",), seeds=1, budget=60)
