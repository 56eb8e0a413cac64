"""Serving predictions by hand from the two passes, and properties of the mixed workload."""

from dataclasses import replace

import numpy as np
import pytest

from autoshard.cost import gemm_law_s, serving_law
from autoshard.errors import InvalidInputError
from autoshard.hardware import parse_cluster
from autoshard.simulator import Simulator, terms
from autoshard.simulator.lengths import chunk_lengths, own_lengths
from autoshard.simulator.points import make_points
from autoshard.simulator.tables import build_tables
from autoshard.workload import Workload
from tests.graphs import GraphMaker

GRAPH = GraphMaker(hidden=512, heads=16, kv_heads=4, head_dim=32, experts=8, intermediate=384).graph("mmmd")
CLUSTER = parse_cluster("H100x8")
SERVE = Workload(phase="serve", isl=3000, osl=200)
FIXED = {"tp": 2, "dp": 2, "ep": 2, "pp": 1, "batch": 40, "replicas": 2}


def replicated(sim: Simulator) -> np.ndarray:
    return np.array([[v.choices.index(None) for v in sim.variables]])


def passes(workload: Workload, fixed: dict[str, int]) -> tuple[np.ndarray, np.ndarray]:
    """Seconds of a decode step and of the passes over one prompt, everything replicated, by part [parts]."""
    law = serving_law("vllm")
    points = make_points(GRAPH, CLUSTER, fixed)
    found = []
    for lengths in (own_lengths(workload), chunk_lengths(workload, law.chunk_tokens)):
        variables, parts = build_tables(GRAPH, CLUSTER, workload, points, {}, lengths=lengths, engine=law)
        dims = np.array([[v.choices.index(None) for v in variables]])
        found.append(np.array([float(parts[b.name].seconds(np.array([0]), dims)[0]) for b in GRAPH.components()]))
    return found[0], found[1] * workload.prompt_tokens / law.chunk_tokens


def test_tpot_ttft_and_rate_by_hand() -> None:
    sim, law = Simulator(GRAPH, CLUSTER, SERVE, fixed=FIXED), serving_law("vllm")
    repeats = np.array([b.repeat for b in GRAPH.components()])
    decode_s, prompt_s = (float((seconds * repeats).sum()) for seconds in passes(SERVE, FIXED))
    dims, at = replicated(sim), np.array([0])
    # 40 requests over dp 2: 20 on a rank, 19 others
    tpot = decode_s + law.interference * 19 * prompt_s / 200
    ttft = (decode_s + prompt_s) * (law.prompt_passes + law.queue_share * 19)
    measured = {m.name: float(sim.measure_s(m, at, dims)[0]) for m in sim.limited}
    assert measured["tpot"] == pytest.approx(tpot) and measured["ttft"] == pytest.approx(ttft)
    # a request makes 200 tokens in TTFT + 199 TPOT; 2 replicas of 40 requests
    whole = ttft + 199 * tpot
    evaluation = sim.evaluate(at, dims)
    assert float(evaluation.step_s[0]) == pytest.approx(whole / 200)
    assert float(evaluation.tokens_per_s[0]) == pytest.approx(2 * 40 * 200 / whole)


def test_terms_sum_to_a_requests_time_per_token_and_name_the_host() -> None:
    sim = Simulator(GRAPH, CLUSTER, SERVE, fixed=FIXED)
    dims = replicated(sim)
    opened = terms(sim, 0, tuple(dims[0].tolist()))
    assert sum(t.seconds for t in opened) == pytest.approx(float(sim.evaluate(np.array([0]), dims).step_s[0]))
    host = [t for t in opened if t.what == "host"]
    law = serving_law("vllm")
    # 20 requests on a rank; in TTFT (prompt_passes + queue_share * 19) times, in each of 199 steps once, of 200 tokens
    share = (law.prompt_passes + law.queue_share * 19 + 199) / 200
    assert len(host) == 1 and host[0].seconds == pytest.approx(law.sequence_s * 20 * share)
    assert any(t.label.endswith("(prompts)") for t in opened)
    # of an older version, whose host and device take turns: its time a step besides
    old = Simulator(GRAPH, CLUSTER, replace(SERVE, engine="vllm==0.12.0"), fixed=FIXED)
    step_s = serving_law("vllm==0.12.0").step_s
    (own,) = [t for t in terms(old, 0, tuple(dims[0].tolist())) if t.what == "host"]
    assert own.seconds == pytest.approx((step_s + law.sequence_s * 20) * share)


def test_on_stages_others_block_one_and_the_request_crosses_all() -> None:
    fixed = {"tp": 1, "dp": 1, "ep": 1, "pp": 4, "batch": 12, "replicas": 1}
    sim, law = Simulator(GRAPH, CLUSTER, SERVE, fixed=fixed), serving_law("vllm")
    at, dims = np.array([0]), replicated(sim)
    tpot, ttft = sim.limited
    decode_s, prompt_s = passes(SERVE, fixed)
    # layers m, m, m, d over 4 stages: the embedding with one m, an m, an m, a d with the head
    counts = np.array([[1, 1, 0, 0], [0, 1, 0, 0], [0, 1, 0, 0], [0, 0, 1, 1]], dtype=float)
    steps, prompts = counts @ decode_s, counts @ prompt_s
    # a microbatch of 3 is back after 4 stages; 11 other prompts hold up 200 tokens, on one stage at a time
    slowest = float((4 * steps + law.interference * 11 / 200 * prompts).max())
    assert float(sim.measure_s(tpot, at, dims)[0]) == pytest.approx(slowest + 4 * float(tpot.send_s[0, 0]))
    first = float(((law.prompt_passes * 4 + law.queue_share * 11) * (steps + prompts)).max())
    assert float(sim.measure_s(ttft, at, dims)[0]) == pytest.approx(first + 4 * float(ttft.send_s[0, 0]))
    assert float(tpot.send_s[0, 0]) > 0


def test_merged_products_share_one_launch() -> None:
    law = serving_law("vllm")
    points = make_points(GRAPH, CLUSTER, {"tp": 1, "dp": 1, "ep": 1, "pp": 1, "batch": 16, "replicas": 1})
    variables, parts = build_tables(GRAPH, CLUSTER, SERVE, points, {}, lengths=own_lengths(SERVE), engine=law)
    layer = next(b.name for b in GRAPH.blocks)
    seconds = {f.label: float(f.table.reshape(-1)[-1]) for f in parts[layer].factors if f.what == "linear"}
    # q, k and v read one tensor: 512 x (512 + 2 * 128) runs as one product, q has two thirds of its columns
    whole = float(gemm_law_s(CLUSTER.device, CLUSTER.device.kernel("gemm", variant="trtllm/bfloat16"), 16, 512, 768))
    assert seconds["q"] + seconds["k"] + seconds["v"] == pytest.approx(whole)
    assert seconds["q"] == pytest.approx(whole * 2 / 3)
    assert len(variables) > 0


def test_each_merged_product_is_split_by_its_own_heads() -> None:
    """Eight query heads belong to each of two kv heads, which must not be taken for pieces of k and v."""
    graph = GraphMaker(hidden=512, heads=16, kv_heads=2, head_dim=32, experts=8, intermediate=384).graph("mmmd")
    law = serving_law("vllm")
    points = make_points(graph, CLUSTER, {"tp": 2, "dp": 1, "ep": 2, "pp": 1, "batch": 16, "replicas": 1})
    variables, parts = build_tables(graph, CLUSTER, SERVE, points, {}, lengths=own_lengths(SERVE), engine=law)
    dims = np.array([[v.choices.index(0 if 0 in v.choices else None) for v in variables]])
    layer = next(b.name for b in graph.blocks)
    seconds = {f.label: float(f.at(np.array([0]), dims)[0]) for f in parts[layer].factors if f.what == "linear"}
    # on each of two ranks 512 x (256 + 2 * 32)
    half = float(gemm_law_s(CLUSTER.device, CLUSTER.device.kernel("gemm", variant="trtllm/bfloat16"), 16, 512, 320))
    assert seconds["q"] == pytest.approx(half * 256 / 320)
    assert seconds["k"] == seconds["v"] == pytest.approx(half * 32 / 320)


def test_every_sequence_has_room_at_its_full_length() -> None:
    sim = Simulator(GRAPH, CLUSTER, SERVE, fixed=FIXED)
    e = sim.evaluate(np.array([0]), replicated(sim))
    # 4 layers, 20 requests of a rank, 3200 tokens, 2 * 4 kv heads * 32 in 16 bits, replicated over tp
    assert float(e.kv_bytes[0]) == 4 * 20 * 3200 * 2 * 4 * 32 * 2


def test_the_fullest_stage_holds_the_caches_that_bind() -> None:
    graph = GraphMaker(hidden=64, vocab=100_000).graph("mmmmm")
    fixed = {"tp": 1, "dp": 1, "ep": 1, "pp": 2, "replicas": 1, "batch": 8}
    sim = Simulator(graph, parse_cluster("H100x2"), Workload(context=10_000), fixed=fixed)
    e = sim.evaluate(np.array([0]), np.array([[v.choices.index(None) for v in sim.variables]]))
    # stages of 3 and 2 layers; each holds 8 sequences of 10,000 tokens of 2 * 4 * 16 elements in 16 bits a layer
    assert float(e.kv_bytes[0]) == 3 * 8 * 10_000 * 2 * 4 * 16 * 2


def test_requests_in_flight_can_be_given() -> None:
    sim = Simulator(GRAPH, CLUSTER, replace(SERVE, concurrency=50), fixed={"tp": 2, "dp": 2, "ep": 2, "pp": 1})
    # 2 replicas of dp 2: 50 over 4 ranks is 13 on the fullest; 50 requests are served, not 52
    assert sim.points.sequences.tolist() == [13] and sim.tokens_in_flight.tolist() == [50]
    with pytest.raises(InvalidInputError, match="batch=8 and concurrency=50 both fix the requests in flight"):
        Simulator(GRAPH, CLUSTER, replace(SERVE, concurrency=50), fixed={"batch": 8})


def latencies(workload: Workload, cluster: object = CLUSTER) -> dict[str, float]:
    sim = Simulator(GRAPH, cluster, workload, fixed=FIXED)  # type: ignore[arg-type]
    return {m.name: float(sim.measure_s(m, np.array([0]), replicated(sim))[0]) for m in sim.limited}


def test_longer_prompts_never_start_sooner_and_longer_answers_never_wait_more() -> None:
    found = [latencies(Workload(phase="serve", isl=isl, osl=200)) for isl in (16, 1000, 4096, 20_000)]
    for name in ("tpot", "ttft"):
        values = [f[name] for f in found]
        assert values == sorted(values), name
    waits = [latencies(Workload(phase="serve", isl=1000, osl=osl))["tpot"] for osl in (10, 300)]
    assert waits == sorted(waits, reverse=True), "prompts come less often"


def test_faster_hardware_is_never_slower() -> None:
    device = CLUSTER.device
    faster = replace(CLUSTER, device=replace(device, memory_bytes_per_s=2 * device.memory_bytes_per_s))
    wider = replace(CLUSTER, intra=replace(CLUSTER.intra, bytes_per_s=2 * CLUSTER.intra.bytes_per_s))
    base = latencies(SERVE)
    for cluster in (faster, wider):
        after = latencies(SERVE, cluster)
        assert all(after[name] <= base[name] for name in base)


def test_limits_count_towards_the_violation() -> None:
    tpot = latencies(SERVE)["tpot"]
    within, beyond = (
        Simulator(GRAPH, CLUSTER, replace(SERVE, tpot_ms=1e3 * tpot * f), fixed=FIXED) for f in (1.01, 0.5)
    )
    assert float(within.evaluate(np.array([0]), replicated(within)).violation[0]) == 0.0
    assert float(beyond.evaluate(np.array([0]), replicated(beyond)).violation[0]) == pytest.approx(1.0)
