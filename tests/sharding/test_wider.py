"""Parts of the space that are there only if asked for: what their choices mean, and that they are refused where run."""

import pytest

from autoshard.api.pins import parse_space, pins_for
from autoshard.errors import InvalidInputError
from autoshard.sharding import Degrees, Strategy, collectives, place_all, strategy_reasons
from autoshard.sharding.layout import S
from autoshard.sharding.legality import chosen_options
from autoshard.sharding.patterns import pattern_strategy
from autoshard.sharding.space import options
from autoshard.sharding.wider import KV_SEQUENCE, check_runs, check_wider, wider_parts
from autoshard.simulator import Simulator
from autoshard.workload import Workload
from tests.graphs import GraphMaker
from tests.traced import traced

GRAPH = GraphMaker(heads=8, kv_heads=2, head_dim=16).graph("d")


def with_choice(choice: int | None, *, tp: int = 8) -> Strategy:
    base = pattern_strategy(GRAPH, Degrees(tp=tp, etp=tp), "megatron")
    return Strategy(degrees=base.degrees, choices=tuple({**dict(base.choices), "layers/attention": choice}.items()))


def test_the_choice_is_there_only_if_asked_for() -> None:
    block = GRAPH.blocks[0]
    core = block.op("attention")
    assert [o.choice for o in options(block, core)] == [0, None]
    assert [o.choice for o in options(block, core, (KV_SEQUENCE,))] == [0, None, 1]
    assert [o.choice for o in options(block, block.op("o"), (KV_SEQUENCE,))] == [
        o.choice for o in options(block, block.op("o"))
    ]


def test_queries_are_gathered_and_partial_outputs_exchanged() -> None:
    """8 heads and 2 kv heads on tp=8: tp_kv = 2 groups of tp_rep = 4 ranks, each group with 4 query heads.

    3 tokens in bfloat16: gathered queries 3 * 4 * 16 * 2 = 384 bytes; partial outputs with a float32 a head
    3 * 4 * (16 * 2 + 4) = 432 bytes. Everything else is as under choice 0.
    """
    by_heads, by_tokens = (collectives(GRAPH, with_choice(choice), tokens=3, activation_bytes=2.0) for choice in (0, 1))
    assert not [c for c in by_heads if c.where == "layers/attention"]
    assert [c for c in by_tokens if c.where != "layers/attention"] == list(by_heads)
    own = [(c.kind, c.axis, c.group_size, c.num_bytes) for c in by_tokens if c.where == "layers/attention"]
    assert own == [("all_gather", "tp_rep", 4, 384), ("all_to_all", "tp_rep", 4, 432)]
    assert place_all(GRAPH, with_choice(1)) == place_all(GRAPH, with_choice(0))


def test_latent_caches_are_split_over_all_of_tp() -> None:
    """DeepSeek-V3 on tp=4, one token: 128 heads * (512 + 64) * 2 bytes of queries, 128 * (512 * 2 + 4) of outputs."""
    graph = traced("deepseek-v3")
    base = pattern_strategy(graph, Degrees(tp=4, ep=1, etp=4), "megatron")
    chosen = {**dict(base.choices), "moe_layers/attention": 1}
    strategy = Strategy(degrees=base.degrees, choices=tuple(chosen.items()))
    assert not strategy_reasons(graph, strategy)
    own = [
        (c.kind, c.axis, c.num_bytes)
        for c in collectives(graph, strategy, tokens=1, activation_bytes=2.0)
        if c.where == "moe_layers/attention"
    ]
    assert own == [("all_gather", "tp", 147_456), ("all_to_all", "tp", 131_584)]


def test_norms_of_heads_go_by_heads() -> None:
    """Qwen3's q and k norms follow the core: where its keys are split over their tokens they are by heads."""
    graph = traced("qwen3-235b-a22b")  # 64 heads, 4 kv heads
    base = pattern_strategy(graph, Degrees(tp=8, ep=1, etp=8), "megatron")
    strategy = Strategy(degrees=base.degrees, choices=tuple({**dict(base.choices), "layers/attention": 1}.items()))
    assert not strategy_reasons(graph, strategy)
    chosen = chosen_options(graph, graph.blocks[0], strategy)
    assert [chosen[n].needs for n in ("attention", "q_norm", "k_norm")] == [(S, S, S), (S,), (S,)]


def test_where_every_rank_has_kv_heads_of_its_own_there_is_nothing_to_split() -> None:
    reasons = strategy_reasons(GRAPH, with_choice(1, tp=2))
    assert [r.message for r in reasons] == ["choice 1 of layers/attention: same as by heads at tp_rep=1"]
    assert not strategy_reasons(GRAPH, with_choice(1))


def test_chosen_keys_are_not_split() -> None:
    """Sparse attention looks at chosen keys, which need not lie evenly on the ranks."""
    graph = traced("glm-5")
    cores = [(b, op) for b, op in graph.all_ops() if op.kind == "latent_attention"]
    assert cores and all([o.choice for o in options(b, op, (KV_SEQUENCE,))] == [0, None] for b, op in cores)


def test_what_is_simulated_only_is_refused_where_it_would_run() -> None:
    assert wider_parts(GRAPH, with_choice(0)) == () and wider_parts(GRAPH, with_choice(1)) == (KV_SEQUENCE,)
    check_runs(GRAPH, with_choice(0))
    with pytest.raises(InvalidInputError, match="kv-sequence: layers/attention=1 .* simulated only"):
        check_runs(GRAPH, with_choice(1))


def test_mistakes_are_named() -> None:
    with pytest.raises(InvalidInputError, match="add --space kv-sequence"):
        pins_for(GRAPH, {"attention": 1})
    assert pins_for(GRAPH, {"attention": 1}, parse_space("kv-sequence")) == {"layers/attention": 1}
    with pytest.raises(InvalidInputError, match="known are kv-sequence"):
        parse_space("kv-sequences")
    for phase in ("prefill", "serve"):
        with pytest.raises(InvalidInputError, match="decode attention"):
            check_wider((KV_SEQUENCE,), phase)
    from autoshard.hardware import parse_cluster

    with pytest.raises(InvalidInputError, match="decode attention"):
        Simulator(GRAPH, parse_cluster("H100x8"), Workload(phase="prefill", isl=100), wider=(KV_SEQUENCE,))
