"""Mixed serving: the exact search equals brute force without limits, and bounds it with them."""

from dataclasses import replace

import numpy as np
import pytest

from autoshard.search.exact import ExactSearch
from autoshard.simulator import Simulator
from autoshard.workload import Workload
from tests.graphs import GraphMaker
from tests.search.test_exact import brute_force, random_pins, tiny_cluster


@pytest.mark.parametrize(("kinds", "fixed"), [("m", {"tp": 2, "batch": 8}), ("dm", {"pp": 2, "tp": 2, "batch": 8})])
def test_brute_force_agrees_and_is_bounded(kinds: str, fixed: dict[str, int]) -> None:
    graph, cluster = GraphMaker().graph(kinds), tiny_cluster(4, 3 * 2**30, 100e9, 4)
    workload = Workload(phase="serve", isl=300, osl=20)
    pins = random_pins(graph, 3, 5)
    sim = Simulator(graph, cluster, workload, fixed=fixed, pinned=pins)
    exact = ExactSearch(sim).run()
    assert exact.tokens_per_s == pytest.approx(brute_force(sim)) and exact.bound == exact.tokens_per_s
    assert exact.point is not None
    at, dims = np.array([exact.point]), np.array([exact.dims])
    tpot, ttft = (1e3 * float(sim.measure_s(m, at, dims)[0]) for m in sim.limited)
    for limits in ({"tpot_ms": 0.98 * tpot}, {"ttft_ms": 0.9 * ttft}, {"tpot_ms": tpot, "ttft_ms": 0.8 * ttft}):
        limited = Simulator(graph, cluster, replace(workload, **limits), fixed=fixed, pinned=pins)
        found, best = ExactSearch(limited).run(), brute_force(limited)
        assert found.tokens_per_s <= best * (1 + 1e-9) <= found.bound * (1 + 2e-9), limits
        assert found.bound <= exact.tokens_per_s * (1 + 1e-9)
        if found.dims is not None:
            e = limited.evaluate(np.array([found.point]), np.array([found.dims]))
            assert float(e.tokens_per_s[0]) == pytest.approx(found.tokens_per_s)
