"""Predictions worked out by hand from the cost functions, and properties of the simulator."""

from dataclasses import replace

import numpy as np
import pytest

from autoshard.cost import collective_s, gemm_s, grouped_gemm_s, imbalance
from autoshard.errors import InvalidInputError
from autoshard.hardware import parse_cluster
from autoshard.sharding.patterns import PATTERNS
from autoshard.sharding.strategy import DISPATCH, RESIDUAL
from autoshard.simulator import Simulator, partition, terms
from autoshard.simulator.memory import WORKSPACE_BYTES
from autoshard.simulator.points import divisors, make_points, ranks_in_node, sequence_grid
from autoshard.simulator.stages import stage_profiles
from autoshard.workload import Workload
from tests.graphs import GraphMaker, mixtral_like


def chosen(sim: Simulator, **choices: int | None) -> np.ndarray:
    """Options of one strategy: the given choices by op name, everything else replicated."""
    picked = []
    for v in sim.variables:
        wanted = choices.get(v.key.split("/")[1])
        picked.append(v.choices.index(wanted))
    return np.array([picked])


def test_partition_shortens_the_first_and_the_last_stage() -> None:
    assert partition(61, 4) == (15, 15, 16, 15)
    assert partition(8, 4) == (2, 2, 2, 2)
    assert partition(5, 2) == (3, 2)
    assert sum(partition(94, 7)) == 94 and max(partition(94, 7)) - min(partition(94, 7)) == 1


def test_only_stages_that_can_bind_are_kept() -> None:
    # 7 layers over 4 stages: 2, 2, 2, 1 -> the first holds the embedding and 2 layers, so the others with 2 do not bind
    assert stage_profiles((0,) * 7, 1, 4).tolist() == [[1.0, 2.0, 0.0], [0.0, 1.0, 1.0]]


@pytest.mark.parametrize(
    ("size", "stride", "devices", "expected"),
    [(8, 1, 64, 8), (8, 8, 64, 1), (4, 4, 64, 2), (16, 1, 64, 8), (3, 1, 24, 2), (2, 32, 64, 1), (1, 5, 64, 1)],
)
def test_ranks_of_a_group_on_one_node(size: int, stride: int, devices: int, expected: int) -> None:
    # nodes of 8; groups of 3 straddle nodes (6, 7 | 8), so the worst one has 2 on a node
    assert ranks_in_node(size, stride, devices, 8) == expected


def test_degrees_are_any_divisors() -> None:
    assert divisors(24) == [1, 2, 3, 4, 6, 8, 12, 24]
    points = make_points(GraphMaker(heads=12, kv_heads=4).graph("mm"), parse_cluster("H100x24"))
    assert {3, 12} <= set(points.tp.tolist()) | set(points.dp.tolist())
    assert np.all(24 % (points.pp * points.group) == 0)
    assert np.all(points.dp * points.tp == points.ep * points.etp)
    assert sequence_grid(20) == [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20]


def test_weights_and_kv_by_hand() -> None:
    """Mixtral-8x7B, tp=8 ep=8, 16 sequences of 1000 tokens, Megatron's choices."""
    sim = Simulator(
        mixtral_like(), parse_cluster("H100x8"), Workload(context=1000), fixed={"tp": 8, "ep": 8, "batch": 16}
    )
    e = sim.evaluate(np.array([0]), chosen(sim, embed=0, q=0, k=0, v=0, attention=0, o=1, head=0))
    # a layer: (q, o: 4096*4096 each; k, v: 4096*1024 each) / 8 + router 8*4096 + two norms + one expert 3*4096*14336
    layer = (2 * 4096 * 4096 + 2 * 4096 * 1024) / 8 + 8 * 4096 + 2 * 4096 + 3 * 4096 * 14336
    ends = 2 * 32000 * 4096 / 8 + 4096
    assert float(e.weights_bytes[0]) == 2 * (32 * layer + ends)
    # 2 (k and v) * 1 head * 128 * 2 bytes * 1000 tokens * 16 sequences * 32 layers
    assert float(e.kv_bytes[0]) == 2 * 1 * 128 * 2 * 1000 * 16 * 32
    assert float(e.tokens_per_s[0]) == pytest.approx(16 / float(e.step_s[0]))


def test_replicated_attention_holds_every_head() -> None:
    sim = Simulator(
        mixtral_like(), parse_cluster("H100x8"), Workload(context=100), fixed={"tp": 8, "ep": 8, "batch": 2}
    )
    split = sim.evaluate(np.array([0]), chosen(sim, attention=0))
    whole = sim.evaluate(np.array([0]), chosen(sim))
    assert float(whole.kv_bytes[0]) == 8 * float(split.kv_bytes[0])


def test_collective_and_gemm_terms_by_hand() -> None:
    cluster = parse_cluster("H100x8")
    sim = Simulator(mixtral_like(), cluster, Workload(context=1000), fixed={"tp": 8, "ep": 8, "batch": 16})
    dims = chosen(sim, embed=0, q=0, k=0, v=0, attention=0, o=1, head=0)
    opened = {(t.part, t.label, t.what): t.seconds for t in terms(sim, 0, tuple(dims[0].tolist()))}
    # o: 16 tokens x (4096/8) x 4096 per layer, then an all_reduce of 16*4096*2 bytes over 8 ranks of one node
    assert opened["layers", "o", "linear"] == pytest.approx(32 * float(gemm_s(cluster.device, 16, 512, 4096)))
    reduce = collective_s("all_reduce", 16 * 4096 * 2, 8, 8, cluster.intra, cluster.inter, engine="vllm_graph")
    assert opened["layers", "o", "collective"] == pytest.approx(32 * float(reduce))
    assert sum(opened.values()) == pytest.approx(float(sim.evaluate(np.array([0]), dims).step_s[0]))


def test_pipeline_time_is_stages_times_the_slowest() -> None:
    graph, cluster = mixtral_like(), parse_cluster("H100x8")
    one = Simulator(
        graph, cluster, Workload(context=1000), fixed={"tp": 2, "ep": 2, "pp": 1, "batch": 8, "replicas": 1}
    )
    two = Simulator(
        graph, cluster, Workload(context=1000), fixed={"tp": 2, "ep": 2, "pp": 2, "batch": 16, "replicas": 1}
    )
    a, b = (s.evaluate(np.array([0]), chosen(s)) for s in (one, two))
    # same microbatch of 8: two stages of 16 layers take as long as one of 32 plus hand-overs and twice the larger end
    assert float(b.step_s[0]) > float(a.step_s[0])
    assert float(b.step_s[0]) < 1.2 * float(a.step_s[0])
    assert float(b.weights_bytes[0]) < 0.6 * float(a.weights_bytes[0])


def test_a_batch_smaller_than_the_pipeline_leaves_stages_idle() -> None:
    graph, cluster = mixtral_like(), parse_cluster("H100x8")
    fixed = {"tp": 2, "ep": 2, "pp": 4}
    full = Simulator(graph, cluster, Workload(), fixed={**fixed, "batch": 4})
    half = Simulator(graph, cluster, Workload(), fixed={**fixed, "batch": 2})
    a, b = (s.evaluate(np.array([0]), chosen(s)) for s in (full, half))
    assert float(b.step_s[0]) == float(a.step_s[0])
    assert float(b.tokens_per_s[0]) == pytest.approx(float(a.tokens_per_s[0]) / 2)


def test_idle_devices_are_counted() -> None:
    graph = GraphMaker(heads=12, kv_heads=6, hidden=96).graph("mm")
    sim = Simulator(graph, parse_cluster("H100x7"), Workload(), fixed={"tp": 3, "ep": 1, "pp": 1, "batch": 4})
    assert sim.points.replicas.tolist() == [2], "two replicas of 3, one device idle"


@pytest.mark.parametrize("phase", ["decode", "prefill"])
def test_faster_hardware_is_never_slower(phase: str) -> None:
    graph = mixtral_like()
    cluster = parse_cluster("H100x16")
    better = [
        replace(cluster, intra=replace(cluster.intra, bytes_per_s=2 * cluster.intra.bytes_per_s)),
        replace(cluster, inter=replace(cluster.inter, bytes_per_s=2 * cluster.inter.bytes_per_s)),
        replace(cluster, device=replace(cluster.device, memory_bytes_per_s=2 * cluster.device.memory_bytes_per_s)),
    ]
    base = Simulator(graph, cluster, Workload(phase=phase))
    rng = np.random.default_rng(0)
    point = rng.integers(0, len(base.points), 500)
    dims = np.stack([rng.integers(0, len(v.choices), 500) for v in base.variables], 1)
    before = base.evaluate(point, dims).step_s
    for faster in better:
        after = Simulator(graph, faster, Workload(phase=phase)).evaluate(point, dims).step_s
        assert np.all(after <= before * (1 + 1e-12))


def test_evaluating_many_is_evaluating_each() -> None:
    sim = Simulator(mixtral_like(), parse_cluster("H100x16"), Workload())
    rng = np.random.default_rng(1)
    point = rng.integers(0, len(sim.points), 50)
    dims = np.stack([rng.integers(0, len(v.choices), 50) for v in sim.variables], 1)
    together = sim.evaluate(point, dims)
    for i in range(50):
        alone = sim.evaluate(point[[i]], dims[[i]])
        assert alone.step_s[0] == together.step_s[i] and alone.tokens_per_s[0] == together.tokens_per_s[i]


def test_limits_make_strategies_infeasible() -> None:
    sim = Simulator(
        mixtral_like(), parse_cluster("H100x8"), Workload(tpot_ms=0.001), fixed={"tp": 8, "ep": 8, "batch": 8}
    )
    e = sim.evaluate(np.array([0]), chosen(sim))
    assert e.tokens_per_s[0] == 0 and e.violation[0] > 1


def test_memory_says_how_much_is_needed() -> None:
    sim = Simulator(mixtral_like(), parse_cluster("H100x1"), Workload())
    # 46.7e9 parameters in bfloat16 do not fit one device
    assert not sim.any_fits and sim.smallest_bytes > 2 * 46.7e9 + WORKSPACE_BYTES


def test_imbalance_is_charged_to_experts() -> None:
    cluster = parse_cluster("H100x8")
    sim = Simulator(mixtral_like(), cluster, Workload(), fixed={"tp": 8, "ep": 8, "batch": 8})
    opened = {(t.part, t.label, t.what): t.seconds for t in terms(sim, 0, tuple(chosen(sim)[0].tolist()))}
    # 8 tokens x 2 experts over 8 ranks: 2 pairs a rank on average, more on the most loaded one, which all wait for
    pairs = 2 * float(imbalance(8, 8, 2, 8))
    # 7.2 of 8 experts are touched, one a rank: almost always some rank reads its only one
    one = grouped_gemm_s(cluster.device, pairs, 1, 1, 14336, 4096)
    assert pairs > 2.4
    assert opened["layers", "experts_down", "experts"] == pytest.approx(32 * float(one))


def test_every_linear_keeps_three_choices_at_legal_degrees() -> None:
    sim = Simulator(mixtral_like(), parse_cluster("H100x8"), Workload(), fixed={"tp": 4, "dp": 2, "ep": 2, "etp": 4})
    counts = {v.key: int(v.legal[0].sum()) for v in sim.variables}
    assert counts == {
        RESIDUAL: 3,
        DISPATCH: 2,
        "prologue/embed": 3,
        "layers/attn_norm": 3,
        "layers/q": 3,
        "layers/k": 3,
        "layers/v": 3,
        "layers/attention": 2,
        "layers/o": 3,
        "layers/ffn_norm": 3,
        "layers/router": 3,
        "layers/experts_up": 3,
        "layers/experts_act": 2,
        "layers/experts_down": 3,
        "epilogue/final_norm": 3,
        "epilogue/head": 3,
    }


@pytest.mark.parametrize(
    ("fixed", "message"),
    [
        ({"tp": 24}, "needs 24 devices"),
        ({"tp": 3}, "does not divide 32 attention heads"),
        ({"wat": 3}, "cannot fix 'wat'"),
        ({"tp": 0}, "at least 1"),
        ({"ep": 8, "dp": 3}, "one of dp and ep divides the other"),
    ],
)
def test_bad_pins_say_why(fixed: dict[str, int], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        Simulator(mixtral_like(), parse_cluster("H100x8"), Workload(), fixed=fixed)


def test_patterns_are_known() -> None:
    assert set(PATTERNS) == {"megatron", "gather_out", "gather_in", "replicated"}


def test_a_tied_head_has_its_own_table_on_the_last_stage() -> None:
    """hidden 64, vocab 256, bfloat16: the table is 32,768 bytes; tied, it is one on one stage and two on two."""
    graph = GraphMaker(tied=True, heads=8).graph("mm")
    found = {}
    for pp in (1, 2):
        sim = Simulator(graph, parse_cluster("H100x2"), Workload(), fixed={"pp": pp, "tp": 1, "batch": 2})
        dims = chosen(sim)
        epilogue = sim.parts[-1].num_bytes(np.array([0]), dims)[0]
        found[pp] = float(epilogue[0])
    assert found == {1: 64 * 2.0, 2: 64 * 2.0 + 256 * 64 * 2.0}


def test_a_window_limits_what_prefill_sees() -> None:
    """Token i of 8 sees min(i, 4) keys: 1+2+3+4*5 = 26, a mean of 3.25; the closed form w - w^2/2n gives 3."""
    from autoshard.simulator.work import mean_window_context

    assert mean_window_context(4, 8) == 3.0
    assert mean_window_context(4, 10**9) == pytest.approx(4.0)


@pytest.mark.parametrize(("pp", "within"), [(4, True), (8, False)])
def test_the_slowest_hand_over_decides(pp: int, within: bool) -> None:
    """Stages of 2 devices: 4 of them fill a node of 8; 8 of them do not, and one hand-over crosses nodes."""
    cluster = parse_cluster("H100x16")
    graph = GraphMaker().graph("m" * 8)
    sim = Simulator(graph, cluster, Workload(), fixed={"pp": pp, "tp": 2, "dp": 1, "ep": 2, "batch": pp})
    num_bytes = 64 * 2.0
    expected = collective_s("send_recv", num_bytes, 2, 2 if within else 1, cluster.intra, cluster.inter)
    replicated, sharded, _ = sim.send_s[0]
    assert float(replicated) == float(expected)
    half = collective_s("send_recv", num_bytes / 2, 2, 2 if within else 1, cluster.intra, cluster.inter)
    assert float(sharded) == float(half)  # a residual sharded over tp = 2 is handed over as it lies
