import math

from autoshard.sharding import Degrees, mesh_of, place_all, strategy_reasons
from autoshard.sharding.patterns import pattern_strategy
from autoshard.sharding.strategy import Strategy
from tests.graphs import GraphMaker


def placed(degrees: Degrees, pattern: str = "megatron", **sizes: int):
    graph = GraphMaker(**sizes).graph("mm")
    strategy = pattern_strategy(graph, degrees, pattern)
    assert strategy_reasons(graph, strategy) == ()
    return graph, mesh_of(graph, degrees), {p.fqn: p for p in place_all(graph, strategy)}


def test_every_parameter_once() -> None:
    graph, _, places = placed(Degrees(tp=4, etp=4))
    assert sorted(places) == sorted(p.fqn for _, _, _, p in graph.parameters())
    assert sum(math.prod(p.shape) for p in places.values()) == graph.num_parameters


def test_megatron_placements() -> None:
    _, mesh, places = placed(Degrees(tp=4, etp=4))
    q = places["model.layers.1.self_attn.q_proj.weight"]
    assert q.mesh_dims == ("dp", "tp") and [x.kind for x in q.placements] == ["replicate", "shard"]
    assert q.placements[1].dim == 0 and q.local_shape(mesh) == (32, 64)
    o = places["model.layers.0.self_attn.o_proj.weight"]
    assert o.placements[1].dim == 1 and o.local_shape(mesh) == (64, 32)
    up = places["model.layers.0.mlp.experts.gate_up_proj"]
    assert up.mesh_dims == ("ep", "etp") and up.placements[0].dim == 0
    assert (up.placements[1].dim, up.placements[1].packed) == (1, 2), "gate and up are split side by side"
    assert up.local_shape(mesh) == (8, 48, 64)


def test_kv_heads_fewer_than_tp_are_copied() -> None:
    _, mesh, places = placed(Degrees(tp=8, etp=8))
    k = places["model.layers.0.self_attn.k_proj.weight"]
    assert k.mesh_dims == ("dp", "tp_kv", "tp_rep")
    assert [x.kind for x in k.placements] == ["replicate", "shard", "replicate"]
    assert k.local_shape(mesh) == (16, 64), "one head of 16 on each rank, each on two ranks"


def test_experts_on_ep_and_etp() -> None:
    _, mesh, places = placed(Degrees(dp=2, tp=2, ep=2, etp=2, batch=2))
    down = places["model.layers.0.mlp.experts.down_proj"]
    assert down.local_shape(mesh) == (4, 64, 48)
    assert down.local_bytes(mesh) == 4 * 64 * 48 * 2


def test_tied_head_takes_the_embedding_s_choice() -> None:
    graph = GraphMaker(tied=True).graph("m")
    degrees = Degrees(tp=4, etp=4)
    for choice, dim in ((0, 0), (1, 1), (None, None)):
        strategy = Strategy(degrees=degrees, choices=(("prologue/embed", choice),))
        assert strategy_reasons(graph, strategy) == ()
        places = {p.fqn: p for p in place_all(graph, strategy)}
        table, head = places["model.embed_tokens.weight"], places["lm_head.weight"]
        assert table.placements == head.placements
        assert table.placements[1].kind == ("replicate" if dim is None else "shard")
        assert dim is None or table.placements[1].dim == dim
        assert head.local_bytes(mesh_of(graph, degrees)) == 0, "an alias has no bytes of its own"
