"""Which part of a whole tensor something holds: per dim, the runs of indices that lie in it one after the other.

A plain shard is one run per dim, a strided one (gate|up) several: the local dim is their concatenation. What two
holders have in common is found dim by dim, so a read is a product of few runs.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from autoshard.sharding import ParamPlacement, StageMesh
from autoshard.sharding.padding import Grain, padded_runs

Run = tuple[int, int]
"""Start and stop of consecutive indices of a whole dim."""


@dataclass(frozen=True, slots=True)
class Region:
    """Runs of every dim of a whole tensor, in the order in which they lie in the part."""

    dims: tuple[tuple[Run, ...], ...]

    @staticmethod
    def whole(shape: tuple[int, ...]) -> "Region":
        """All of a tensor."""
        return Region(tuple(((0, n),) for n in shape))

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the part."""
        return tuple(sum(b - a for a, b in runs) for runs in self.dims)

    @property
    def numel(self) -> int:
        """Elements of the part."""
        return math.prod(self.shape)

    def filled_up(self, dim: int, ranks: int, packed: int, grain: Grain) -> "Region":
        """The part with ``dim``, of which it has all, filled up for ``ranks``: padding is runs past the dim's end.

        They begin one further, so that they are never taken for a continuation of what is there.
        """
        width = self.shape[dim]
        runs: list[Run] = []
        for start, stop in padded_runs(width, ranks, packed=packed, grain=grain):
            runs += _slice(self.dims[dim], start, stop) if stop <= width else [(start + 1, stop + 1)]
        return Region((*self.dims[:dim], tuple(runs), *self.dims[dim + 1 :]))

    def within(self, shape: tuple[int, ...]) -> "Region":
        """The part without padding: what of it lies in a tensor of ``shape``."""
        real = zip(self.dims, shape, strict=True)
        return Region(tuple(tuple(run for run in runs if run[1] <= n) for runs, n in real))

    def cut(self, dim: int, size: int, coordinate: int, packed: int = 1) -> "Region":
        """The share of one of ``size`` ranks: of each of ``packed`` parts side by side, the same share."""
        length = self.shape[dim]
        share = length // packed // size
        assert share * packed * size == length, (self.shape, dim, size, packed)
        starts = [part * (length // packed) + coordinate * share for part in range(packed)]
        runs = tuple(run for s in starts for run in _slice(self.dims[dim], s, s + share))
        return Region((*self.dims[:dim], _merge(runs), *self.dims[dim + 1 :]))


@dataclass(frozen=True, slots=True)
class Overlap:
    """A box that two parts share: where it starts in each, and its shape."""

    source: tuple[int, ...]
    target: tuple[int, ...]
    shape: tuple[int, ...]


def overlaps(source: Region, target: Region) -> Iterator[Overlap]:
    """Boxes of the whole tensor that lie in both parts, each in one piece in either."""
    per_dim = []
    for held, wanted in zip(source.dims, target.dims, strict=True):
        found = []
        at_source = 0
        for a, b in held:
            at_target = 0
            for c, d in wanted:
                low, high = max(a, c), min(b, d)
                if low < high:
                    found.append((at_source + low - a, at_target + low - c, high - low))
                at_target += d - c
            at_source += b - a
        per_dim.append(found)
    for box in product(*per_dim):
        yield Overlap(tuple(s for s, _, _ in box), tuple(t for _, t, _ in box), tuple(n for _, _, n in box))


def region_of(placement: ParamPlacement, stage: StageMesh, coordinates: dict[str, int]) -> Region:
    """The part of a parameter on the rank at ``coordinates`` (one per axis), padding included."""
    region = Region.whole(placement.shape)
    for axis, p in zip(placement.mesh_dims, placement.placements, strict=True):
        if p.kind == "shard":
            ranks = stage.size(axis)  # type: ignore[arg-type]
            region = region.filled_up(p.dim, ranks, p.packed, p.grain).cut(p.dim, ranks, coordinates[axis], p.packed)
    return region


def _slice(runs: tuple[Run, ...], start: int, stop: int) -> Iterator[Run]:
    """Runs of the positions ``start`` to ``stop`` of the concatenation of ``runs``."""
    at = 0
    for a, b in runs:
        low, high = max(start, at), min(stop, at + b - a)
        if low < high:
            yield a + low - at, a + high - at
        at += b - a


def _merge(runs: tuple[Run, ...]) -> tuple[Run, ...]:
    merged: list[Run] = []
    for a, b in runs:
        if merged and merged[-1][1] == a:
            merged[-1] = (merged[-1][0], b)
        else:
            merged.append((a, b))
    return tuple(merged)
