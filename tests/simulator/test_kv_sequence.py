"""Seconds and bytes of attention whose keys are split over their tokens, and the optimum with it."""

import itertools

import numpy as np
import pytest

from autoshard.cost import attention_decode_s, collective_s, memory_op_s, mla_decode_s
from autoshard.hardware import parse_cluster
from autoshard.search.exact import ExactSearch
from autoshard.sharding.wider import KV_SEQUENCE
from autoshard.simulator import Simulator
from autoshard.simulator.tables import build_tables
from autoshard.workload import Workload
from tests.graphs import GraphMaker
from tests.traced import traced

WIDER = (KV_SEQUENCE,)
H100 = parse_cluster("H100x8")


def test_a_rank_keeps_and_reads_its_share_of_the_tokens() -> None:
    """8 heads, 2 kv heads of 16 on tp=8 (2 kv groups of 4 ranks), 3 sequences of 1,001 tokens.

    Under choice 0 a rank keeps 3 * 1001 * (16 + 16) * 2 bytes of one kv head; split over 4 ranks the fullest has 251
    tokens of it. Heads of a group: 4. The kernel reads 1001 / 4 tokens; the sum reads 4 heads of partial outputs and
    writes 1.
    """
    graph = GraphMaker(heads=8, kv_heads=2, head_dim=16).graph("d")
    fixed = {"pp": 1, "dp": 1, "tp": 8, "batch": 3}
    sim = Simulator(graph, H100, Workload(context=1001), fixed=fixed, wider=WIDER)
    (v,) = (i for i, variable in enumerate(sim.variables) if variable.key == "layers/attention")
    assert sim.variables[v].choices == (0, None, 1) and sim.variables[v].legal[0].tolist() == [True, True, True]
    component = sim.components["layers"]
    kv = dict(component.kv)[v][0]
    assert kv.tolist() == [3 * 1001 * 32 * 2, 3 * 1001 * 32 * 2 * 2, 3 * 251 * 32 * 2]

    compute, inside = (f.table[0] for f in component.factors if f.label == "attention" and f.variables == (v,))
    device = H100.device
    expected = attention_decode_s(device, 3, 1001 / 4, 4, 1, 16, 16) + memory_op_s(device, 3 * (4 + 1) * 16 * 2)
    assert compute[2] == pytest.approx(float(expected), rel=1e-12)
    # 3 tokens * 4 heads: 384 bytes of queries gathered, 432 of outputs with a float32 each exchanged, in a node.
    moved = sum(
        float(collective_s(kind, size, 4, 4, H100.intra, H100.inter))  # type: ignore[arg-type]
        for kind, size in (("all_gather", 384.0), ("all_to_all", 432.0))
    )
    assert inside.tolist() == [0.0, 0.0, pytest.approx(moved, rel=1e-12)]


def test_a_latent_cache_is_split_over_tp() -> None:
    """DeepSeek-V3, tp=8: 512 + 64 elements a token; of 4,096 tokens a rank has 512. 128 heads read 512 tokens each."""
    graph = traced("deepseek-v3")
    fixed = {"pp": 1, "dp": 1, "tp": 8, "ep": 8, "batch": 2}
    workload = Workload(context=4096)
    sim = Simulator(graph, parse_cluster("H200x8"), workload, fixed=fixed, wider=WIDER)
    (v,) = (i for i, variable in enumerate(sim.variables) if variable.key == "moe_layers/attention")
    device = sim.cluster.device
    _, components = build_tables(graph, sim.cluster, workload, sim.points, {}, wider=WIDER)
    component = components["moe_layers"]
    # choices 0, none, 1
    assert dict(component.kv)[v][0].tolist() == [2 * 4096 * 576 * 2, 2 * 4096 * 576 * 2, 2 * 512 * 576 * 2]
    compute = next(f.table[0] for f in component.factors if f.label == "attention")
    # The sum reads 128 heads of partial outputs in the latent and writes 16.
    expected = mla_decode_s(device, 2, 512, 128) + memory_op_s(device, 2 * (128 + 16) * 512 * 2)
    assert compute[2] == pytest.approx(float(expected), rel=1e-12)


def test_the_space_without_it_is_as_it_was() -> None:
    graph = GraphMaker(heads=8, kv_heads=2).graph("m")
    narrow, wide = (Simulator(graph, H100, Workload(), wider=wider) for wider in ((), WIDER))
    for a, b in zip(narrow.variables, wide.variables, strict=True):
        assert a.choices == b.choices[: len(a.choices)]
        assert (len(a.choices) < len(b.choices)) == a.key.endswith("/attention")
    rng = np.random.default_rng(0)
    point = rng.integers(len(narrow.points), size=200)
    dims = np.stack([rng.integers(len(v.choices), size=200) for v in narrow.variables], 1)
    a, b = narrow.evaluate(point, dims), wide.evaluate(point, dims)
    assert np.array_equal(a.step_s, b.step_s) and np.array_equal(a.kv_bytes, b.kv_bytes)


@pytest.mark.parametrize("context", [2048, 2_000_000])
def test_exact_is_brute_force_with_it(context: int) -> None:
    """One kv head on tp=4; at two million tokens, half of a device's memory, its cache has to be split."""
    graph = GraphMaker(hidden=512, heads=8, kv_heads=1, head_dim=1024, intermediate=512).graph("d")
    pinned = {"layers/q": 0, "layers/k": None, "layers/v": None, "layers/o": 1, "layers/up": 0, "prologue/embed": None}
    fixed = {"pp": 1, "tp": 4, "dp": 1, **({"batch": 16} if context == 2048 else {})}
    workload = Workload(context=context)
    sim = Simulator(graph, parse_cluster("H100x4"), workload, fixed=fixed, pinned=pinned, wider=WIDER)
    best = 0.0
    for point in range(len(sim.points)):
        axes = [np.flatnonzero(v.legal[point]) for v in sim.variables]
        dims = np.array(list(itertools.product(*axes)), dtype=np.int64)
        best = max(best, float(sim.evaluate(np.full(len(dims), point), dims).tokens_per_s.max()))
    found = ExactSearch(sim).run()
    assert found.tokens_per_s == pytest.approx(best, rel=1e-9)
    narrow = ExactSearch(Simulator(graph, parse_cluster("H100x4"), workload, fixed=fixed, pinned=pinned)).run()
    assert found.point is not None and found.dims is not None
    chosen = sim.strategy(found.point, found.dims).choice("layers/attention")
    if context == 2048:
        assert found.tokens_per_s >= narrow.tokens_per_s
    else:
        # 2e6 tokens * 2 * 1024 * 2 bytes = 8.2 GB a sequence: 9 fit in 77 GB, 4 times as many if split over 4 ranks.
        assert chosen == 1 and found.tokens_per_s > 3.0 * narrow.tokens_per_s
