"""Stages in one process: what a rank keeps, how calls are cut, what caches count, and what is refused."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from transformers import DynamicCache

from autoshard._torch import FakeStore
from autoshard.emit import apply, device_mesh, pipeline_stage
from autoshard.emit.foreign import ForeignLayer, ForeignModule
from autoshard.emit.microbatches import caches_of, part_of
from autoshard.errors import InvalidInputError, UnsupportedModelError
from autoshard.sharding import Degrees, mesh_of, stage_placements, stages_of
from autoshard.sharding.patterns import pattern_strategy
from tests.validate.sources import SOURCES, graph_of

PP2 = Degrees(pp=2, tp=2, etp=2, batch=2)


@pytest.fixture(params=[1, 2])
def rank(request: pytest.FixtureRequest) -> Iterator[int]:
    """Ranks 0 and 1 are stage 0 of ``PP2``, 2 and 3 are stage 1."""
    dist.init_process_group("fake", store=FakeStore(), rank=request.param, world_size=4)
    yield request.param
    dist.destroy_process_group()


def staged(name: str, **more: Any) -> nn.Module:
    graph = graph_of(name)
    model = SOURCES[name].build(device="cpu", dtype="float32", seed=1)
    return apply(model, graph, pattern_strategy(graph, PP2, "megatron"), device_mesh(graph, PP2, "cpu"), **more)


@pytest.mark.parametrize("name", ["mixtral", "llama-tied"])
def test_a_rank_keeps_its_stage_only(rank: int, name: str) -> None:
    graph, stage = graph_of(name), rank // 2
    model = staged(name)
    strategy = pattern_strategy(graph, PP2, "megatron")
    mine = stage_placements(graph, strategy, stages_of(graph, strategy)[stage])
    parameters = dict(model.named_parameters(remove_duplicate=False))
    assert set(parameters) == {p.fqn for p in mine}
    assert sum(p.to_local().untyped_storage().nbytes() for p in parameters.values()) == sum(
        p.local_bytes(mesh_of(graph, PP2)) for p in mine
    )
    assert isinstance(model.model.layers[1 - stage], ForeignLayer)
    assert isinstance(model.model.embed_tokens, ForeignModule) == (stage == 1)
    assert isinstance(model.lm_head, ForeignModule) == (stage == 0)


def test_logits_come_out_of_the_last_stage(rank: int) -> None:
    ids = torch.zeros((4, 6), dtype=torch.long)
    with torch.no_grad():
        out = staged("mixtral")(ids)
        shared = staged("mixtral", logits_on="all")(ids)
    assert (out.logits is None) == (rank < 2)
    assert shared.logits.shape == (4, 6, 256)
    # Two microbatches in one cache of the caller's: it counts 6 tokens in both layers and keeps none of them.
    assert [out.cache.get_seq_length(layer) for layer in (0, 1)] == [6, 6]
    parts = caches_of(out.cache, 2)
    own, foreign = rank // 2, 1 - rank // 2
    assert [p.layers[own].keys.shape for p in parts] == [(2, 2, 6, 8)] * 2  # 2 sequences, 4 kv heads over tp 2
    assert [p.layers[foreign].keys.numel() for p in parts] == [6, 6]


def test_only_what_a_stage_has_can_be_asked_for(rank: int) -> None:  # noqa: ARG001
    model = staged("mixtral")
    ids = torch.zeros((2, 3), dtype=torch.long)
    with torch.no_grad(), pytest.raises(InvalidInputError, match="not hidden_states"):
        model(ids, output_hidden_states=True)
    with pytest.raises(InvalidInputError, match="num_beams=2"):
        model.generate(ids, num_beams=2, max_new_tokens=2)
    with pytest.raises(InvalidInputError, match="runs in one stage"):
        pipeline_stage(SOURCES["mixtral"].build())


def test_calls_are_cut_along_the_sequences() -> None:
    x = torch.arange(12).reshape(4, 3)
    cut = part_of({"ids": x, "positions": x[:1], "last": x[:, 0], "masks": {"full": x}, "n": 1}, 1, 2, 4)
    assert cut["ids"].tolist() == [[6, 7, 8], [9, 10, 11]] and torch.equal(cut["masks"]["full"], cut["ids"])
    assert cut["positions"].tolist() == [[0, 1, 2]] and cut["last"].tolist() == [0, 3, 6, 9] and cut["n"] == 1


def test_a_cache_stays_with_its_microbatches() -> None:
    cache = DynamicCache()
    assert caches_of(cache, 2) is caches_of(cache, 2)
    with pytest.raises(InvalidInputError, match="2 microbatches cannot go on with 4"):
        caches_of(cache, 4)
    filled = DynamicCache()
    filled.update(torch.ones(1, 1, 2, 4), torch.ones(1, 1, 2, 4), 0)
    with pytest.raises(InvalidInputError, match="filled without microbatches"):
        caches_of(filled, 2)


@dataclass
class ByLayerZero:
    """A cache that tells its length by layer 0, as many do."""

    keys: dict[int, Tensor] = field(default_factory=dict)
    values: dict[int, Tensor] = field(default_factory=dict)

    @property
    def num_tokens(self) -> int:
        return int(self.keys[0].shape[2]) if 0 in self.keys else 0

    def append(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        self.keys[layer], self.values[layer] = key, value
        return key, value


def test_a_cache_that_counts_by_a_layer_elsewhere_is_refused(rank: int) -> None:
    model, ids = staged("gpt-moe"), torch.zeros((2, 3), dtype=torch.long)
    with torch.no_grad():
        if rank < 2:
            model(ids, cache=ByLayerZero())
            return
        with pytest.raises(UnsupportedModelError, match="ByLayerZero does not count its tokens on stage 1"):
            model(ids, cache=ByLayerZero())


def test_a_layer_that_returns_more_than_the_residual_is_refused(rank: int) -> None:
    graph = graph_of("gpt-moe")
    model = SOURCES["gpt-moe"].build(device="cpu", dtype="float32", seed=1)
    forward = model.layers[0].forward
    model.layers[0].forward = lambda *args: (forward(*args), None)
    strategy = pattern_strategy(graph, PP2, "megatron")
    apply(model, graph, replace(strategy, stages=(1, 1)), device_mesh(graph, PP2, "cpu"))
    if rank < 2:
        with torch.no_grad(), pytest.raises(UnsupportedModelError, match="layers.0 returns tuple"):
            model(torch.zeros((2, 3), dtype=torch.long))


def test_a_stand_in_says_where_it_is() -> None:
    """Llama-4 sends its ids to ``embed_tokens.weight.device``, on every stage."""
    stand_in = ForeignModule(4, torch.bfloat16, "meta")
    assert (stand_in.weight.device.type, stand_in.weight.dtype, stand_in.weight.numel()) == ("meta", torch.bfloat16, 0)
    assert not list(stand_in.parameters())
