"""The exact search equals brute force over the whole space, on small random problems."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from autoshard.errors import InvalidInputError
from autoshard.hardware import Cluster, parse_cluster
from autoshard.ir import OpGraph
from autoshard.search.exact import ExactSearch
from autoshard.sharding.legality import choice_keys
from autoshard.sharding.space import options
from autoshard.sharding.strategy import DISPATCH, RESIDUAL
from autoshard.simulator import Simulator
from autoshard.workload import Workload
from tests.graphs import GraphMaker


def tiny_cluster(num_devices: int, memory_bytes: float, bandwidth: float, per_node: int) -> Cluster:
    base = parse_cluster("H100x8")
    device = replace(base.device, memory_bytes=memory_bytes)
    intra = replace(base.intra, bytes_per_s=bandwidth)
    return replace(base, num_devices=num_devices, device=device, intra=intra, devices_per_node=per_node)


def brute_force(sim: Simulator) -> float:
    """Best throughput over every point and every combination of legal options, through ``evaluate`` alone."""
    best = 0.0
    for point in range(len(sim.points)):
        axes = [np.flatnonzero(v.legal[point]) for v in sim.variables]
        dims = np.array(list(itertools.product(*axes)), dtype=np.int64).reshape(-1, len(axes))
        if len(dims):
            e = sim.evaluate(np.full(len(dims), point), dims)
            best = max(best, float(e.tokens_per_s.max()))
    return best


FIXES = [{"tp": 2, "batch": 8}, {"tp": 4, "batch": 16}, {"dp": 2, "tp": 2, "batch": 8}, {"pp": 2, "tp": 2, "batch": 8}]


def random_pins(graph: OpGraph, seed: int, free: int) -> dict[str, int | None]:
    """A random choice for every op but ``free`` of them (and the residual), so that brute force stays small."""
    rng = np.random.default_rng(seed)
    keys = [k for k in choice_keys(graph) if k not in (RESIDUAL, DISPATCH)]
    pins = {}
    for key in rng.permutation(keys)[free:]:
        block, name = key.split("/")
        op = next(b for b in graph.components() if b.name == block).op(name)
        choices = [o.choice for o in options(next(b for b in graph.components() if b.name == block), op)]
        pins[str(key)] = choices[rng.integers(len(choices))] if op.kind != "norm" else None
    return pins


@given(
    kinds=st.sampled_from(["m", "mm", "d", "dd", "dm"]),
    fixed=st.sampled_from(FIXES),
    phase=st.sampled_from(["decode", "prefill"]),
    bandwidth=st.sampled_from([2e9, 4.5e11]),
    slack=st.sampled_from([0.0, 0.1, 0.5, 5.0]),
    hidden=st.sampled_from([64, 2048]),
    tied=st.booleans(),
    seed=st.integers(0, 10**6),
)
@settings(max_examples=60)
def test_exact_is_brute_force(kinds, fixed, phase, bandwidth, slack, hidden, tied, seed) -> None:
    assume("pp" not in fixed or len(kinds) > 1)
    graph = GraphMaker(hidden=hidden, intermediate=hidden + 32, experts=4, tied=tied).graph(kinds)
    if "m" not in kinds:
        fixed = {**fixed, "ep": fixed.get("dp", 1)}
    workload = Workload(phase=phase, context=512)
    pinned = random_pins(graph, seed, free=7)
    try:
        roomy = Simulator(graph, tiny_cluster(4, 1e12, bandwidth, 2), workload, fixed=fixed, pinned=pinned)
    except InvalidInputError:
        assume(False)
    least, most = _byte_range(roomy)
    cluster = tiny_cluster(4, least + slack * (most - least) + 1.0, bandwidth, 2)
    sim = Simulator(graph, cluster, workload, fixed=fixed, pinned=pinned)
    found = ExactSearch(sim).run()
    assert found.tokens_per_s == pytest.approx(brute_force(sim), rel=1e-9)
    if found.point is not None:
        e = sim.evaluate(np.array([found.point]), np.array([found.dims]))
        assert float(e.tokens_per_s[0]) == pytest.approx(found.tokens_per_s, rel=1e-9)


@pytest.mark.parametrize(
    "kinds, tied, slack",
    [("dm", False, 0.02), pytest.param("dm", False, 2.0, marks=pytest.mark.wide), ("m", True, 0.2)],
)
def test_the_k_best_and_every_option_are_brute_force(kinds: str, tied: bool, slack: float) -> None:
    graph = GraphMaker(hidden=2048, intermediate=2080, experts=4, tied=tied).graph(kinds)
    pinned = random_pins(graph, 3, free=4)
    workload = Workload(context=512)
    fixed = {"pp": 1, "batch": 8}
    roomy = Simulator(graph, tiny_cluster(4, 1e12, 2e9, 2), workload, fixed=fixed, pinned=pinned)
    least, most = _byte_range(roomy)
    cluster = tiny_cluster(4, least + slack * (most - least) + 1.0, 2e9, 2)
    sim = Simulator(graph, cluster, workload, fixed=fixed, pinned=pinned)
    rates = [point_rates(sim, point) for point in range(len(sim.points))]
    best = np.array([r.max(initial=0.0) for _, r in rates])
    exact = ExactSearch(sim)

    found = exact.run(3)
    count = min(3, int((best > 0).sum()))
    assert found.values[list(found.best_points)] == pytest.approx(np.sort(best)[::-1][:count], rel=1e-9)

    if slack == 2.0:  # everything fits, so no point is left open
        assert exact.run(everywhere=True).values == pytest.approx(best, rel=1e-9)
        assert np.count_nonzero(found.values) <= np.count_nonzero(best)

    tp = np.unique(sim.points.tp, return_inverse=True)[1]
    found = exact.run(2, tp)
    of_tp = np.array([best[tp == t].max() for t in range(tp.max() + 1)])
    count = min(2, int((of_tp > 0).sum()))
    assert found.values[list(found.best_points)] == pytest.approx(np.sort(of_tp)[::-1][:count], rel=1e-9)
    assert len({int(tp[p]) for p in found.best_points}) == count

    for point, (dims, rate) in enumerate(rates):
        for v, values in enumerate(exact.option_values(point)):
            for option, value in enumerate(values):
                expected = float(rate[dims[:, v] == option].max(initial=0.0))
                assert value == (pytest.approx(expected, rel=1e-9) if expected else None)


def point_rates(sim: Simulator, point: int) -> tuple[np.ndarray, np.ndarray]:
    """Every combination of legal options of a point and its throughput."""
    axes = [np.flatnonzero(v.legal[point]) for v in sim.variables]
    dims = np.array(list(itertools.product(*axes)), dtype=np.int64).reshape(-1, len(axes))
    return dims, sim.evaluate(np.full(len(dims), point), dims).tokens_per_s


def _byte_range(sim: Simulator) -> tuple[float, float]:
    n = len(sim.points)
    most = np.zeros((n, len(sim.parts)))
    for j, part in enumerate(sim.parts):
        for v, table in (*part.weights, *part.kv):
            most[:, j] += np.where(sim.variables[v].legal, table, 0.0).max(1)
    largest = sim.held_bytes(np.arange(n), most) + sim.fixed_bytes(np.arange(n))
    return float(sim.minimum_bytes().min()), float(largest.max())


def test_a_limit_that_cannot_be_met_gives_nothing() -> None:
    graph = GraphMaker().graph("mm")
    sim = Simulator(graph, parse_cluster("H100x4"), Workload(tpot_ms=1e-4))
    result = ExactSearch(sim).run()
    assert result.point is None and result.tokens_per_s == 0.0
    fastest = ExactSearch(sim).fastest_step()
    assert fastest is not None and fastest[0] > 1e-7
