"""Layers dealt to stages by time and bytes, against sums done by hand and brute force."""

import itertools

import numpy as np
import pytest

from autoshard.errors import InvalidInputError
from autoshard.simulator.balance import balanced_stages


def test_the_head_counts_as_two_layers() -> None:
    # 10 layers of 1 s, an embedding of 0, a head of 2 s, over 3 stages: 12 s in all, 4 s a stage, so 4, 4 and 2 + head;
    # the even partition (3, 4, 3) would wait for 3 + 2 = 5 s
    layers, part_s = (0,) * 10, np.array([0.0, 1.0, 2.0])
    assert balanced_stages(layers, part_s, part_s, 3) == (4, 4, 2)


def test_cheap_first_layers_are_dealt_more_of() -> None:
    # 3 dense layers of 1 s, then 5 of 2 s: 13 s over 2 stages; 3 + 2 x 2 = 7 against 3 x 2 = 6
    assert balanced_stages((0, 0, 0, 1, 1, 1, 1, 1), np.array([0.0, 1.0, 2.0, 0.0]), np.ones(4), 2) == (5, 3)


def test_bytes_bound_what_time_would_deal() -> None:
    # 9 layers and a head of 2: 4 s a stage at best; with room for 3 layers a stage only (3, 3, 3) is left, 5 s
    layers, part_s, part_bytes = (0,) * 9, np.array([0.0, 1.0, 2.0]), np.array([0.0, 1.0, 0.0])
    assert balanced_stages(layers, part_s, part_bytes, 3) == (3, 4, 2)
    assert balanced_stages(layers, part_s, part_bytes, 3, room_bytes=3.0) == (3, 3, 3)
    with pytest.raises(InvalidInputError, match="9 layers over pp=2 need at least"):
        balanced_stages(layers, part_s, part_bytes, 2, room_bytes=4.0)


@pytest.mark.parametrize("seed", range(6))
def test_no_partition_is_faster(seed: int) -> None:
    rng = np.random.default_rng(seed)
    layers = tuple(int(k) for k in rng.integers(0, 2, 7))
    part_s, part_bytes = rng.uniform(0.5, 3.0, 4), rng.uniform(0.5, 3.0, 4)
    pp, room = int(rng.integers(2, 5)), float(rng.uniform(6.0, 14.0))

    def loads(cuts: tuple[int, ...], parts: np.ndarray) -> float:
        ends = (0, *cuts, len(layers))
        stages = [sum(parts[1 + k] for k in layers[a:b]) for a, b in itertools.pairwise(ends)]
        stages[0] += parts[0]
        stages[-1] += parts[-1]
        return float(max(stages))

    every = list(itertools.combinations(range(1, len(layers)), pp - 1))
    fitting = [loads(c, part_s) for c in every if loads(c, part_bytes) <= room]
    if not fitting:
        with pytest.raises(InvalidInputError):
            balanced_stages(layers, part_s, part_bytes, pp, room)
        return
    counts = balanced_stages(layers, part_s, part_bytes, pp, room)
    cuts = tuple(itertools.accumulate(counts[:-1]))
    assert sum(counts) == len(layers) and min(counts) >= 1
    assert loads(cuts, part_s) == pytest.approx(min(fitting)) and loads(cuts, part_bytes) <= room * (1 + 1e-12)
