"""Dims that do not divide: filling them up, cutting them off, and loading what was never filled up."""

from pathlib import Path

import pytest
import torch
from torch import nn

from autoshard import emit
from autoshard.emit.checkpoint import load_weights, save_sharded
from autoshard.emit.checkpoint.regions import Region
from autoshard.emit.padding import cut_off, fill_up
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
