"""Applying to a model in one process that pretends to be one rank of many: meshes, DTensors, refusals."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from autoshard._torch import FakeStore, StridedShard
from autoshard.emit import apply, device_mesh, submesh, torch_placements
from autoshard.errors import InvalidInputError, PlanMismatchError
from autoshard.sharding import Degrees, mesh_of, place_all
from autoshard.sharding.patterns import pattern_strategy
from autoshard.tracing import ConfigSource, trace
from autoshard.validate.expectation import axis_ranks
from tests.validate.sources import SOURCES, graph_of

WORLD, RANK = 8, 5


@pytest.fixture
def world() -> Iterator[None]:
    dist.init_process_group("fake", store=FakeStore(), rank=RANK, world_size=WORLD)
    yield
    dist.destroy_process_group()


DEGREES = [
    Degrees(tp=8, ep=8),
    Degrees(tp=8, ep=2, etp=4),
    Degrees(dp=2, tp=4, ep=4, etp=2, batch=2),
    Degrees(dp=4, tp=2, ep=2, etp=4, batch=4),
    Degrees(dp=8, ep=8, batch=8),
]


@pytest.mark.parametrize(
    "degrees", [*DEGREES, Degrees(pp=2, tp=4, ep=2, etp=2), Degrees(pp=4, dp=2, ep=2, batch=2)], ids=str
)
def test_every_axis_has_the_ranks_the_core_says(world: None, degrees: Degrees) -> None:  # noqa: ARG001
    graph = graph_of("mixtral")
    mesh = device_mesh(graph, degrees, "cpu")
    stage = mesh_of(graph, degrees)
    for axis, view in stage.views:
        if view:
            flat = submesh(mesh, stage, [axis])
            assert tuple(sorted(flat.mesh.flatten().tolist())) == axis_ranks(graph, degrees, axis, RANK)
            assert flat.mesh_dim_names == (axis,)
    pairs = submesh(mesh, stage, ("ep", "etp"))
    assert pairs.shape == (degrees.ep, degrees.etp) and pairs.mesh_dim_names == ("ep", "etp")


@pytest.mark.parametrize("degrees", DEGREES, ids=str)
@pytest.mark.parametrize("pattern", ["megatron", "gather_out", "gather_in"])
def test_parameters_become_the_planned_dtensors(world: None, degrees: Degrees, pattern: str) -> None:  # noqa: ARG001
    graph = graph_of("mixtral")
    strategy = pattern_strategy(graph, degrees, pattern)
    whole = dict(SOURCES["mixtral"].build(device="cpu", dtype="float32", seed=1).named_parameters())
    model = SOURCES["mixtral"].build(device="cpu", dtype="float32", seed=1)
    apply(model, graph, strategy, device_mesh(graph, degrees, "cpu"))
    stage = mesh_of(graph, degrees)
    parameters = dict(model.named_parameters())
    for placement in place_all(graph, strategy):
        p = parameters.pop(placement.fqn)
        assert isinstance(p.data, DTensor) and p.shape == placement.shape
        assert p.data.placements == torch_placements(placement)
        assert p.data.device_mesh.mesh_dim_names == placement.mesh_dims
        assert p.data.to_local().shape == placement.local_shape(stage)
        by_torch = distribute_tensor(
            whole[placement.fqn].detach(), p.data.device_mesh, p.data.placements, src_data_rank=None
        )
        assert torch.equal(p.data.to_local(), by_torch.to_local())
        assert p.data.to_local().untyped_storage().nbytes() == placement.local_bytes(stage)
    assert not parameters


def test_packed_parameters_are_strided_shards() -> None:
    graph = graph_of("mixtral")
    strategy = pattern_strategy(graph, Degrees(tp=4, ep=2, etp=2), "megatron")
    found = {p.fqn: torch_placements(p) for p in place_all(graph, strategy)}
    experts = "model.layers.0.mlp.experts"
    assert found[f"{experts}.gate_up_proj"] == (Shard(0), StridedShard(1, split_factor=2))
    assert found[f"{experts}.down_proj"] == (Shard(0), Shard(2))
    assert found["model.layers.0.self_attn.o_proj.weight"] == (Replicate(), Shard(1))


def test_a_published_size_on_meta(world: None) -> None:  # noqa: ARG001
    source = ConfigSource(
        name="mixtral-8x7b",
        class_name="MixtralForCausalLM",
        config={
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
            "vocab_size": 32000,
        },
    )
    model = source.build()
    graph = trace(model, name=source.name)
    degrees = Degrees(dp=2, tp=4, ep=4, etp=2, batch=2)
    strategy = pattern_strategy(graph, degrees, "megatron")
    apply(model, graph, strategy, device_mesh(graph, degrees, "cpu"))
    stage = mesh_of(graph, degrees)
    local = {name: p.data.to_local() for name, p in model.named_parameters()}  # type: ignore[attr-defined]
    assert all(t.is_meta for t in local.values())
    assert sum(t.numel() * 2 for t in local.values()) == sum(p.local_bytes(stage) for p in place_all(graph, strategy))


def test_tied_parameters_stay_tied(world: None) -> None:  # noqa: ARG001
    graph, degrees = graph_of("llama-tied"), Degrees(tp=8, etp=8)
    model = SOURCES["llama-tied"].build(device="cpu", dtype="float32")
    apply(model, graph, pattern_strategy(graph, degrees, "megatron"), device_mesh(graph, degrees, "cpu"))
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert model.lm_head.weight.to_local().shape == (32, 64)


def test_kv_heads_fewer_than_tp_live_on_the_split_mesh(world: None) -> None:  # noqa: ARG001
    graph, degrees = graph_of("mixtral"), Degrees(tp=8, etp=8)  # 4 kv heads
    model = SOURCES["mixtral"].build(device="cpu", dtype="float32")
    apply(model, graph, pattern_strategy(graph, degrees, "megatron"), device_mesh(graph, degrees, "cpu"))
    attention = model.model.layers[0].self_attn
    weight = attention.k_proj.weight
    assert weight.device_mesh.mesh_dim_names == ("dp", "tp_kv", "tp_rep")
    assert tuple(weight.placements) == (Replicate(), Shard(0), Replicate())
    assert attention.num_key_value_groups == 1  # 8 heads / 8 ranks on 4 kv heads / 4


def test_what_does_not_belong_is_refused(world: None) -> None:  # noqa: ARG001
    graph, degrees = graph_of("mixtral"), Degrees(tp=8, ep=8)
    strategy = pattern_strategy(graph, degrees, "megatron")
    mesh = device_mesh(graph, degrees, "cpu")
    with pytest.raises(PlanMismatchError, match="embed.weight"):
        apply(SOURCES["mixtral"].build(), graph_of("gpt-moe"), strategy, mesh)
    with pytest.raises(PlanMismatchError, match="k_proj.weight is .32, 64. in the plan and .16, 64. in the model"):
        apply(SOURCES["mixtral-2-kv-heads"].build(), graph, strategy, mesh)
    with pytest.raises(PlanMismatchError, match="needs a mesh"):
        other = replace(strategy, degrees=Degrees(tp=8, ep=4, etp=2))
        apply(SOURCES["mixtral"].build(), graph, other, mesh)
    model = apply(SOURCES["mixtral"].build(), graph, strategy, mesh)
    with pytest.raises(PlanMismatchError, match="already"):
        apply(model, graph, strategy, mesh)
    with pytest.raises(PlanMismatchError, match=r"1\*1\*4 = 4 ranks, this job has 8"):
        device_mesh(graph, Degrees(tp=4, ep=4), "cpu")
    with pytest.raises(InvalidInputError, match="stages 2,1 are not 2 layers over pp=2"):
        staged = replace(strategy, degrees=Degrees(pp=2, tp=4, ep=4), stages=(2, 1))
        apply(SOURCES["mixtral"].build(), graph, staged, mesh)
