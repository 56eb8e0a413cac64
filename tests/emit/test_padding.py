"""Dims that do not divide: filling them up, cutting them off, and loading what was never filled up."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import Shard

from autoshard import emit
from autoshard.emit.checkpoint import distributed_state, load_weights, save_sharded
from autoshard.emit.checkpoint.regions import Region
from autoshard.emit.padding import cut_off, fill_up
from autoshard.errors import PlanMismatchError
from autoshard.sharding import Degrees
from autoshard.sharding.padding import fits, padded_runs, padded_width
from autoshard.sharding.patterns import pattern_strategy
from tests.emit.test_checkpoint import assert_same_shards, rank_of_four
from tests.validate.test_uneven import SOURCES, graph_of


def test_widths_by_hand() -> None:
    assert padded_width(250, 4) == 252  # 63 rows each
    assert padded_width(20, 4, packed=2) == 24  # gate and up of 10 to 12 each
    assert padded_width(14, 4, grain=(2, 1)) == 16  # 7 kv heads with 2 query heads each: 8 kv heads
    assert padded_width(40, 16, grain=(5, 1)) == 48  # 8 kv heads with 5 each, 2 ranks a kv head: 6 each
    assert padded_width(96, 4, grain=(3, 16)) == 128  # 2 kv heads with 3 heads of 16: 4 each
    assert padded_runs(20, 4, packed=2) == ((0, 10), (20, 22), (10, 20), (20, 22))
    assert padded_runs(8, 4) == ((0, 8),)


def test_no_rank_has_only_padding() -> None:
    assert fits(7, 4) and not fits(6, 4)  # 2 2 2 1; 2 2 2 0
    assert fits(40, 16, grain=(5, 1)) and not fits(4, 8, grain=(1, 1))  # nothing is shared in a group of one
    assert not fits(12, 4, grain=(4, 1))  # 3 kv heads on 4 ranks


@pytest.mark.parametrize(
    ("ranks", "packed", "grain", "want"),
    [
        (4, 1, (1, 1), [0, 1, 2, 3, 4, 5, -1, -1]),
        (2, 2, (1, 1), [0, 1, 2, -1, 3, 4, 5, -1]),
        (4, 1, (3, 1), [0, 1, 2, -1, 3, 4, 5, -1]),  # 2 groups of 3, each for 2 ranks
    ],
)
def test_filling_up_and_cutting_off(ranks: int, packed: int, grain: tuple[int, int], want: list[int]) -> None:
    x = torch.arange(6) + 1
    full = fill_up(x[None], 1, ranks, packed, grain)
    assert (full - 1).tolist() == [want]
    assert torch.equal(cut_off(full, -1, 6, ranks, packed, grain), x[None])


def test_a_part_with_padding_by_hand() -> None:
    # 10 rows for 4 ranks are 12: the last rank has row 9 and two that no file has.
    last = Region.whole((10, 2)).filled_up(0, 4, 1, (1, 1)).cut(0, 4, 3)
    assert last == Region((((9, 10), (11, 13)), ((0, 2),))) and last.shape == (3, 2)
    assert last.within((10, 2)) == Region((((9, 10),), ((0, 2),)))


def build(**more: object) -> nn.Module:
    return SOURCES["mixtral"].build(dtype="float32", **more)  # type: ignore[arg-type]


@pytest.mark.wide
@pytest.mark.parametrize("pattern", ["megatron", "gather_out", "gather_in"])
def test_shards_of_a_checkpoint_are_those_of_the_model(pattern: str, tmp_path: Path) -> None:
    graph = graph_of("mixtral")
    whole = build(device="cpu", seed=3)
    (tmp_path / "whole").mkdir()
    whole.save_pretrained(tmp_path / "whole")  # type: ignore[operator]
    strategy = pattern_strategy(graph, Degrees(tp=4, ep=2, etp=2), pattern, uneven=True)
    for rank in (3, 2, 1, 0):
        with rank_of_four(rank, graph, strategy.degrees) as mesh:
            want = emit.apply(build(device="cpu", seed=3), graph, strategy, mesh)
            got = emit.apply(build(), graph, strategy, mesh)
            load_weights(got, graph, strategy, mesh, tmp_path / "whole")
            assert_same_shards(got, want)
            save_sharded(want, graph, strategy, tmp_path / "shards")
    other = pattern_strategy(graph, Degrees(dp=2, tp=2, ep=4, batch=2), pattern)
    for again, options in ((strategy, {}), (other, {"reshard": True})):
        with rank_of_four(2, graph, again.degrees) as mesh:
            want = emit.apply(build(device="cpu", seed=3), graph, again, mesh)
            got = emit.apply(build(), graph, again, mesh)
            load_weights(got, graph, again, mesh, tmp_path / "shards", **options)
            assert_same_shards(got, want)


def test_torch_checkpoints_see_what_is_not_filled_up() -> None:
    # 250 rows of the table over tp=4 are 63 each, 61 on the last; 7 experts over ep=2 are 4 and 3; of gate|up 2 x 90
    # over etp=2 half of each; 2 kv heads' groups of 3 heads are filled up in the middle, which no box shows.
    graph = graph_of("mixtral")
    degrees = Degrees(tp=4, ep=2, etp=2)
    strategy = pattern_strategy(graph, degrees, "megatron", uneven=True)
    heads = {c: None for c in ("layers/q", "layers/k", "layers/v", "layers/attention", "layers/o")}
    plain = replace(strategy, choices=tuple({**dict(strategy.choices), **heads}.items()))
    whole = dict(build(device="cpu", seed=3).named_parameters())
    with rank_of_four(3, graph, degrees) as mesh:
        state = distributed_state(emit.apply(build(device="cpu", seed=3), graph, plain, mesh), graph, plain)
        table: Any = state["model.embed_tokens.weight"]
        assert tuple(table.shape) == (250, 64) and torch.equal(
            table.to_local(), whole["model.embed_tokens.weight"][189:]
        )
        name = "model.layers.0.mlp.experts.gate_up_proj"
        banks: Any = state[name]
        assert tuple(banks.shape) == (7, 2, 90, 64) and tuple(banks.placements) == (Shard(0), Shard(2))
        assert torch.equal(banks.to_local(), whole[name].unflatten(1, (2, 90))[4:, :, 45:])
        with pytest.raises(
            PlanMismatchError, match=r"q_proj.weight \(96, 64\) is filled up to \(128, 64\) head by head"
        ):
            distributed_state(emit.apply(build(device="cpu", seed=3), graph, strategy, mesh), graph, strategy)


def round_trip(rank: int, folder: str) -> None:
    """Saved over four ranks that 7 experts and 250 rows do not divide by, loaded by them and over two and two."""
    import torch.distributed.checkpoint as dcp

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=4)
    graph = graph_of("mixtral")
    for i, degrees in enumerate(
        (Degrees(dp=2, tp=2, ep=4, batch=2), Degrees(dp=4, ep=4, batch=4), Degrees(dp=4, ep=2, etp=2, batch=4))
    ):
        strategy, mesh = pattern_strategy(graph, degrees, "megatron"), emit.device_mesh(graph, degrees, "cpu")
        want = emit.apply(build(device="cpu", seed=3), graph, strategy, mesh)
        dcp.save(distributed_state(want, graph, strategy), checkpoint_id=f"{folder}/dcp{i}")
        for saved in {0, i}:
            got = emit.apply(build(device="cpu", seed=9), graph, strategy, mesh)
            dcp.load(distributed_state(got, graph, strategy), checkpoint_id=f"{folder}/dcp{saved}")
            assert_same_shards(got, want)
    dist.destroy_process_group()


@pytest.mark.wide
def test_torch_distributed_checkpoint_round_trip(tmp_path: Path) -> None:
    import torch.multiprocessing as mp

    mp.start_processes(round_trip, args=(str(tmp_path),), nprocs=4, start_method="spawn")  # type: ignore[no-untyped-call]
