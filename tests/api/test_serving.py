"""Plans, frontiers and sizes of mixed serving on a small model."""

import re

import numpy as np
import pytest

from autoshard.api.build_plan import build_plan
from autoshard.api.serving import frontier, smallest_cluster
from autoshard.api.simulate import simulate
from autoshard.api.solve import make_simulator, solve
from autoshard.errors import InvalidInputError, NoFeasiblePlanError
from autoshard.hardware import parse_cluster
from autoshard.workload import Workload
from tests.graphs import GraphMaker

GRAPH = GraphMaker(hidden=512, heads=8, kv_heads=4, head_dim=64, experts=8, intermediate=512).graph("mm")
CLUSTER = parse_cluster("H100x4")


def serve(**more: float) -> Workload:
    return Workload(phase="serve", isl=1000, osl=100, **more)  # type: ignore[arg-type]


def test_a_plan_keeps_both_limits_and_names_the_one_that_binds() -> None:
    free = solve(make_simulator(GRAPH, CLUSTER, serve()), algorithm="exact")
    loose = build_plan(free, None).predicted
    assert loose.tpot_s is not None and loose.ttft_s is not None
    limits = {"tpot_ms": 1e3 * loose.tpot_s * 0.5, "ttft_ms": 1e3 * loose.ttft_s}
    solution = solve(make_simulator(GRAPH, CLUSTER, serve(**limits)), algorithm="megatron")
    plan = build_plan(solution, None)
    tight = plan.predicted
    assert tight.tpot_s is not None and tight.ttft_s is not None
    assert tight.tpot_s * 1e3 <= limits["tpot_ms"] and tight.ttft_s * 1e3 <= limits["ttft_ms"]
    assert tight.tokens_per_s_per_user == pytest.approx(1 / tight.tpot_s)
    assert 0 < tight.tokens_per_s_per_gpu < loose.tokens_per_s_per_gpu
    assert plan.binding[0].startswith("TPOT: batch")
    exact = solution.exact
    assert exact is not None and exact.bound >= exact.tokens_per_s > 0
    assert plan.search.exact_is_bound == (exact.bound > exact.tokens_per_s * (1 + 1e-12))


def test_limits_nothing_keeps_are_named() -> None:
    with pytest.raises(NoFeasiblePlanError, match="meets TPOT <= 0.001 ms; the fastest by itself is TPOT 0") as error:
        solve(make_simulator(GRAPH, CLUSTER, serve(tpot_ms=0.001)))
    assert "\n" not in str(error.value)
    found = re.search(r"what would help: TPOT <= ([\d.]+) ms$", str(error.value))
    assert found, "nothing but a looser limit: the launches alone take longer"
    least = float(found[1])
    assert solve(make_simulator(GRAPH, CLUSTER, serve(tpot_ms=least)), algorithm="exact").point is not None


def test_two_limits_are_loosened_together() -> None:
    with pytest.raises(NoFeasiblePlanError) as error:
        solve(make_simulator(GRAPH, CLUSTER, serve(tpot_ms=0.001, ttft_ms=0.01)))
    found = re.search(r"help: TPOT <= ([\d.]+) ms and TTFT <= ([\d.]+) ms", str(error.value))
    assert found
    tpot_ms, ttft_ms = map(float, found.groups())
    assert solve(make_simulator(GRAPH, CLUSTER, serve(tpot_ms=tpot_ms, ttft_ms=ttft_ms)), algorithm="exact").point >= 0


def test_requests_in_flight_that_are_too_many_for_a_limit_are_left_open() -> None:
    free = build_plan(solve(make_simulator(GRAPH, CLUSTER, serve()), algorithm="exact"), None).predicted
    assert free.tpot_s is not None
    crowd = serve(tpot_ms=1e3 * free.tpot_s, concurrency=8000)
    with pytest.raises(NoFeasiblePlanError, match="help: TPOT <= .* ms; or leaving concurrency=8000 open"):
        solve(make_simulator(GRAPH, CLUSTER, crowd))


def test_every_kind_of_change_that_keeps_a_limit_is_named() -> None:
    one, held = parse_cluster("H100x1"), {"batch": 4096}
    with pytest.raises(NoFeasiblePlanError) as error:
        solve(make_simulator(GRAPH, one, serve(tpot_ms=0.001), fixed=held))
    message = str(error.value)
    assert "; or " not in message.split("help:")[1], "nothing but the limit helps that much"
    least = float(message.split("help: TPOT <= ")[1].split()[0])
    kinds = r"TPOT <= [\d.]+ ms; or leaving batch free; or 2 devices \(2x\); or prompts of 500"
    with pytest.raises(NoFeasiblePlanError, match=f"help: {kinds}"):
        solve(make_simulator(GRAPH, one, serve(tpot_ms=0.97 * least), fixed=held))


def test_simulate_reports_both_latencies_and_the_host() -> None:
    fixed = {"tp": 2, "dp": 1, "ep": 2, "batch": 8}
    data = simulate(GRAPH, CLUSTER, serve(tpot_ms=1e-3, ttft_ms=1e-3), fixed=fixed, pinned={})
    assert [r.split(":")[0] for r in data["reasons"]] == ["TPOT", "TTFT"]
    assert data["terms"]["epilogue/engine host"] > 0
    p = data["predicted"]
    # 2 replicas of 8 requests that make 100 tokens in TTFT + 99 TPOT
    assert p["tokens_per_s"] == pytest.approx(2 * 8 * 100 / (p["ttft_s"] + 99 * p["tpot_s"]))
    fixed.pop("batch")
    same = simulate(GRAPH, CLUSTER, serve(concurrency=16), fixed=fixed, pinned={})
    assert same["degrees"]["batch"] == 8 and same["predicted"]["tokens_per_s"] == pytest.approx(p["tokens_per_s"])


@pytest.mark.parametrize("workload", [serve(), Workload(context=1000)])
def test_no_point_of_the_frontier_beats_another(workload: Workload) -> None:
    points = frontier(GRAPH, CLUSTER, workload, fixed={"tp": 2})["frontier"]
    assert len(points) >= 3
    per_gpu = np.array([p["tokens_per_s_per_gpu"] for p in points])
    per_user = np.array([p["tokens_per_s_per_user"] for p in points])
    assert np.all(np.diff(per_gpu) < 0) and np.all(np.diff(per_user) > 0)
    best = solve(make_simulator(GRAPH, CLUSTER, workload, fixed={"tp": 2}), algorithm="exact")
    assert points[0]["tokens_per_s_per_gpu"] == pytest.approx(best.found)
    with pytest.raises(InvalidInputError, match="needs phase decode or serve"):
        frontier(GRAPH, CLUSTER, Workload(phase="prefill"))


def test_fewest_gpus_are_the_least_product_of_size_and_replicas() -> None:
    workload = Workload(context=2000, tpot_ms=0.5)
    one = smallest_cluster(GRAPH, CLUSTER, workload, rate=1.0)
    assert one["gpus"] == one["replicas"] == 1
    each = one["tried"][0]["tokens_per_s"]
    many = smallest_cluster(GRAPH, CLUSTER, workload, rate=2.5 * each)
    assert many["gpus"] == min(t["gpus"] for t in many["tried"])
    assert many["tried"][0]["gpus"] == 3, "2.5 times what one device makes needs three of them"
    assert many["tokens_per_s"] >= 2.5 * each and many["degrees"]["replicas"] == many["replicas"]
    with pytest.raises(InvalidInputError, match="rate=0 must be a positive"):
        smallest_cluster(GRAPH, CLUSTER, workload, rate=0.0)
    with pytest.raises(NoFeasiblePlanError, match="no replica of up to 4 devices will do: .*TPOT"):
        smallest_cluster(GRAPH, CLUSTER, Workload(tpot_ms=1e-4), rate=1.0, largest_replica=4)
