"""Plans at full size and true world size, without numbers: what ranks hold and send is what is listed."""

import threading
from dataclasses import replace

import pytest
import torch.distributed as dist

from autoshard import autoshard, catalogue
from autoshard._torch import FakeStore
from autoshard.api.validation import validate
from autoshard.sharding import Degrees
from autoshard.sharding.patterns import pattern_strategy
from autoshard.tracing import trace_source
from autoshard.units import dtype_bytes
from autoshard.validate import run_full_size
from tests.validate.faults import drop_reduction, swap_placement
from tests.validate.sources import SOURCES, graph_of

EP8 = Degrees(dp=4, tp=2, ep=8, batch=8)


def test_what_ranks_hold_and_send_is_listed() -> None:
    graph = graph_of("mixtral")
    report = run_full_size(SOURCES["mixtral"], graph, pattern_strategy(graph, EP8, "megatron"), sequences=2, length=3)
    assert report.passed, report.difference
    assert (report.world_size, report.ranks, report.tokens, report.logits_shape) == (8, (7,), 6, (2, 3, 256))
    assert report.collectives_match and report.parameter_bytes_match
    # 2 layers: q 64x64/2, k and v 32x64/2 each, o 64x64/2, router 8x64, norms 2x64, one expert 3 x 96 x 64; table and
    # head 256x64/2 each, last norm 64; float32
    layer = (64 + 32 + 32 + 64) // 2 * 64 + (8 + 2) * 64 + 3 * 96 * 64
    assert report.parameter_bytes == 4 * (2 * layer + 256 * 64 + 64)
    # per layer: o summed over tp, tokens gathered over dp, shares scattered over dp and summed over tp; then the table
    # summed and the logits gathered
    assert sum(t.count for t in report.observed) == 2 * 4 + 2


def test_stages_hand_over_the_residual() -> None:
    name = "mixtral-3-layers"
    graph = graph_of(name)
    base = pattern_strategy(graph, Degrees(pp=2, tp=2, ep=2, batch=2), "megatron")
    for stages in ((2, 1), (1, 2)):
        report = run_full_size(SOURCES[name], graph, replace(base, stages=stages), sequences=2, length=3)
        assert report.passed, report.difference
        assert (report.world_size, report.ranks) == (4, (1, 3))
        # Rank 1 sends 2 microbatches of 1 x 3 tokens of 64 in float32; who sends is counted.
        sent = [t for t in report.observed if t.axis == "pp"]
        assert [(t.num_bytes, t.count, t.stage) for t in sent] == [(3 * 64 * 4, 2, 0)]


# The table, o and the experts' shares of 2 layers are summed over tp: 5 all_reduces, 3 without those of o.
@pytest.mark.parametrize(
    "fault,noticed", [(drop_reduction, "expected 5 x all_reduce over tp"), (swap_placement, "raised")]
)
def test_what_differs_is_named(fault, noticed: str) -> None:  # type: ignore[no-untyped-def]
    graph = graph_of("mixtral")
    strategy = pattern_strategy(graph, Degrees(tp=8, ep=8), "megatron")
    with fault():
        report = run_full_size(SOURCES["mixtral"], graph, strategy, sequences=2, length=3)
    assert not report.passed
    assert report.difference is not None and noticed in report.difference


def test_tokens_are_exchanged_without_numbers() -> None:
    graph = graph_of("mixtral")
    strategy = pattern_strategy(graph, Degrees(dp=2, tp=2, ep=4, batch=2), "megatron", dispatch=0)
    report = run_full_size(SOURCES["mixtral"], graph, strategy, sequences=2, length=4)
    assert report.passed, report.difference
    assert sum(t.count for t in report.observed if t.kind == "all_to_all") == 6  # counts, rows, results; 2 layers


def test_stages_hand_over_without_numbers() -> None:
    """2 stages of one layer: 2 sequences in 2 microbatches of 3 tokens x 64 x 2 bytes each, sent by the first stage."""
    graph = graph_of("mixtral")
    strategy = pattern_strategy(graph, Degrees(pp=2, tp=2, ep=2, batch=2), "megatron")
    report = run_full_size(SOURCES["mixtral"], graph, strategy, sequences=2, length=3)
    assert report.passed, report.difference
    sent = [t for t in report.observed if t.kind == "send_recv"]
    size = 3 * 64 * dtype_bytes(graph.dtype)
    assert [(t.stage, t.num_bytes, t.count) for t in sent] == [(0, size, 2)]


def test_a_process_group_of_the_caller_is_left_alone() -> None:
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=2)
    try:
        graph = graph_of("mixtral")
        strategy = pattern_strategy(graph, Degrees(tp=4, ep=4), "megatron")
        threads = threading.active_count()
        assert run_full_size(SOURCES["mixtral"], graph, strategy, sequences=1, length=2).passed
        assert (dist.get_rank(), dist.get_world_size(), threading.active_count()) == (1, 2, threads)
    finally:
        dist.destroy_process_group()


@pytest.mark.wide
@pytest.mark.timeout(900)
@pytest.mark.parametrize("pattern", ["megatron", "gather_out", "gather_in"])
@pytest.mark.parametrize("world,degrees", [(64, {"dp": 8, "tp": 8, "ep": 64}), (256, {"dp": 32, "tp": 8, "ep": 128})])
@pytest.mark.parametrize("name", ["deepseek-v3", "kimi-k2"])
def test_the_largest_models_on_64_and_256_ranks(name: str, world: int, degrees: dict[str, int], pattern: str) -> None:
    source = catalogue.find(name)
    graph = trace_source(source)
    d = Degrees(**degrees, etp=world // degrees["ep"], batch=degrees["dp"] * 4)
    report = run_full_size(source, graph, pattern_strategy(graph, d, pattern), sequences=4, length=1)
    print(f"{name} on {world} ranks, {pattern}: {report.seconds:.1f} s for {len(report.ranks)} ranks")
    assert report.passed, report.difference
    assert report.world_size == world


@pytest.mark.wide
@pytest.mark.timeout(900)
@pytest.mark.parametrize("fix", ["tp=8,ep=64,dp=8,pp=1", "tp=1,ep=64,dp=64,pp=1"])
def test_a_searched_plan_at_full_size(fix: str) -> None:
    plan = autoshard("deepseek-v3", "H100x64", search="exact", fix=fix)
    found = validate(plan, simulate_ranks=4, dtype="float64")
    assert found["passed"], found
    tier = found["tiers"][0]
    assert (tier["name"], tier["passed"], tier["world_size"]) == ("full_size", True, 64)
    listed = sum(c.count for ops in plan.data.ops.values() for op in ops for c in op.collectives)
    assert sum(t["count"] for t in tier["observed"]) == listed
