"""Stages worked out by hand: hidden 64, heads 8 x 16, kv 4, experts 8, intermediate 96, vocab 256, bfloat16."""

from collections import Counter
from dataclasses import replace

import pytest

from autoshard.ir import Param
from autoshard.sharding import (
    Degrees,
    Strategy,
    collectives,
    degree_reasons,
    handovers,
    layers_per_stage,
    mesh_of,
    num_microbatches,
    place_all,
    stage_collectives,
    stage_instances,
    stage_placements,
    stages_of,
    strategy_reasons,
)
from autoshard.sharding.patterns import pattern_strategy
from tests.graphs import GraphMaker

PP2 = Degrees(pp=2, tp=2, etp=2, batch=2)
# q 128 x 64, k and v 64 x 64, o 64 x 128, two norms of 64
ATTENTION = 2 * 128 * 64 + 2 * 64 * 64 + 2 * 64
DENSE = ATTENTION + 3 * 96 * 64
MOE = ATTENTION + 8 * 64 + 8 * 3 * 96 * 64


def strategy_of(kinds: str, degrees: Degrees = PP2, *, stages: tuple[int, ...] = (), residual: int | None = None):
    graph = GraphMaker().graph(kinds)
    return graph, replace(pattern_strategy(graph, degrees, "megatron", residual=residual), stages=stages)


def test_layers_are_dealt_in_order() -> None:
    graph, strategy = strategy_of("ddmdm", stages=(2, 3))
    first, last = stages_of(graph, strategy)
    assert (first.first, first.end, last.first, last.end) == (0, 2, 2, 5)
    assert [(b.name, i) for b, i in stage_instances(graph, first)] == [
        ("prologue", 0),
        ("dense_layers", 0),
        ("dense_layers", 1),
    ]
    assert [(b.name, i) for b, i in stage_instances(graph, last)] == [
        ("moe_layers", 0),
        ("dense_layers", 2),
        ("moe_layers", 1),
        ("epilogue", 0),
    ]
    assert layers_per_stage(graph, replace(strategy, stages=())) == (3, 2)  # even: the last stage is the shorter


def test_61_layers_over_4_stages() -> None:
    graph, strategy = strategy_of("d" * 3 + "m" * 58, Degrees(pp=4, tp=2, etp=2, batch=4))
    assert layers_per_stage(graph, strategy) == (15, 15, 16, 15)
    kinds = [Counter(b.name for b, _ in stage_instances(graph, s)) for s in stages_of(graph, strategy)]
    assert kinds == [
        {"prologue": 1, "dense_layers": 3, "moe_layers": 12},
        {"moe_layers": 15},
        {"moe_layers": 16},
        {"moe_layers": 15, "epilogue": 1},
    ]


def test_a_stage_holds_its_own_parameters() -> None:
    graph, strategy = strategy_of("ddm", Degrees(pp=2, batch=2), stages=(1, 2))
    mesh = mesh_of(graph, strategy.degrees)
    bytes_of = [
        sum(p.local_bytes(mesh) for p in stage_placements(graph, strategy, s)) for s in stages_of(graph, strategy)
    ]
    table = 256 * 64
    assert bytes_of == [2 * (table + DENSE), 2 * (DENSE + MOE + 64 + table)]
    everything = [p for s in stages_of(graph, strategy) for p in stage_placements(graph, strategy, s)]
    assert sorted(everything, key=lambda p: p.fqn) == sorted(place_all(graph, strategy), key=lambda p: p.fqn)


def test_a_tied_head_is_a_copy_on_the_last_stage() -> None:
    graph = GraphMaker(tied=True).graph("dd")
    table = 256 * 64 * 2
    for degrees, copies in ((Degrees(pp=2, batch=2), 2), (Degrees(), 1)):
        strategy = Strategy(degrees=degrees, choices=())
        mesh = mesh_of(graph, degrees)
        held = [p for s in stages_of(graph, strategy) for p in stage_placements(graph, strategy, s)]
        total = sum(p.local_bytes(mesh) for p in held)
        assert total == 2 * (2 * DENSE + 64) + copies * table


def test_what_is_handed_over() -> None:
    # 10 tokens x 64 x 2 bytes = 1280 a microbatch, half of it on each of two ranks when the residual is sharded
    for residual, num_bytes in ((None, 1280), (0, 640)):
        graph, strategy = strategy_of("mm", residual=residual)
        (sent,) = handovers(graph, strategy, tokens=10, activation_bytes=2, microbatches=2)
        assert (sent.kind, sent.axis, sent.group_size, sent.num_bytes, sent.count) == (
            "send_recv",
            "pp",
            2,
            num_bytes,
            2,
        )
        assert sent.where == "stage 0 to 1"
    graph, strategy = strategy_of("mmm", Degrees(pp=1, tp=2, etp=2))
    assert handovers(graph, strategy, tokens=10, activation_bytes=2) == ()


def test_stages_together_run_what_the_model_runs() -> None:
    graph, strategy = strategy_of("dmdmm", stages=(4, 1))
    listed = collectives(graph, strategy, tokens=8, activation_bytes=4)
    whole = Counter({(c.where, c.kind, c.axis, c.num_bytes): c.count for c in listed})
    found: Counter[tuple[str, str, str, int]] = Counter()
    sends = 0
    for stage in stages_of(graph, strategy):
        for c in stage_collectives(graph, strategy, stage, tokens=8, activation_bytes=4, microbatches=3):
            if c.kind == "send_recv":
                sends += c.count
            else:
                found[c.where, c.kind, c.axis, c.num_bytes] += c.count
    assert found == Counter({key: 3 * n for key, n in whole.items()}) and sends == 3


@pytest.mark.parametrize(
    ("pp", "sequences", "count"), [(2, 4, 2), (2, 3, 1), (4, 6, 3), (4, 2, 2), (8, 1, 1), (1, 5, 1)]
)
def test_microbatches_divide_the_sequences(pp: int, sequences: int, count: int) -> None:
    assert num_microbatches(pp, sequences) == count


def test_an_illegal_partition_is_named() -> None:
    for stages in ((2, 2), (5,), (0, 3), (3, 1)):
        graph, strategy = strategy_of("mmm", stages=stages)
        (reason,) = strategy_reasons(graph, strategy)
        assert reason.rule == "stages" and "even partition is 2,1" in reason.message
    graph, strategy = strategy_of("mmm", stages=(1, 2))
    assert not strategy_reasons(graph, strategy)


def test_what_cannot_be_cut_has_one_stage() -> None:
    graph = GraphMaker().graph("mm")
    assert not degree_reasons(graph, pp=2, dp=1, tp=1, ep=1)
    # A table that belongs to the module the layers are in.
    (embed,) = graph.prologue.ops
    loose = replace(embed, params=(Param(fqn="model.table", shape=(256, 64), dtype="bfloat16"),))
    outside = replace(graph, prologue=replace(graph.prologue, ops=(loose,)))
    # A layer whose k is the q of the first layer.
    block = graph.blocks[0]
    ops = tuple(
        replace(op, params=(replace(op.params[0], shared_with="model.shared.weight"),)) if op.name == "k" else op
        for op in block.ops
    )
    shared = replace(graph, blocks=(replace(block, ops=ops),))
    for cannot, why in ((outside, "model.table belongs to"), (shared, "layers share")):
        (reason,) = degree_reasons(cannot, pp=2, dp=1, tp=1, ep=1)
        assert reason.rule == "pipeline" and why in reason.message
        assert not degree_reasons(cannot, pp=1, dp=1, tp=1, ep=1)
