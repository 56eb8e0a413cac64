"""Degrees of parallelism, and the mesh of one pipeline stage refined so that every view of it exists.

A stage has ``G = dp * tp = ep * etp`` devices. Rank in the stage = ``dp_index * tp + tp_index`` =
``ep_index * etp + etp_index``: dp and ep are the outer directions. One of dp and ep divides the other, so a single
mesh of nested pieces refines both views; key/value heads fewer than tp split tp once more, into ``tp_kv`` (outer:
different heads) and ``tp_rep`` (copies of the same heads).
"""

import math
from dataclasses import dataclass
from typing import get_args

from autoshard.errors import InvalidInputError
from autoshard.sharding.layout import Axis


@dataclass(frozen=True, slots=True, kw_only=True)
class Degrees:
    """Degrees of one replica and its batch.

    ``batch`` is the number of sequences in flight per replica, over all dp ranks and microbatches; ``replicas`` copies
    of the pp * dp * tp devices serve independently. ``pp`` microbatches are in flight (fewer when the batch is
    smaller).
    """

    pp: int = 1
    dp: int = 1
    tp: int = 1
    ep: int = 1
    etp: int = 1
    batch: int = 1
    replicas: int = 1

    def __post_init__(self) -> None:
        for name in ("pp", "dp", "tp", "ep", "etp", "batch", "replicas"):
            if getattr(self, name) < 1:
                raise InvalidInputError(f"degree {name} is {getattr(self, name)}, must be at least 1")
        if self.dp * self.tp != self.ep * self.etp:
            raise InvalidInputError(
                f"dp*tp = {self.dp}*{self.tp} must equal ep*etp = {self.ep}*{self.etp}: a stage has one set of devices"
            )
        if self.dp % self.ep and self.ep % self.dp:
            raise InvalidInputError(f"one of dp={self.dp} and ep={self.ep} must divide the other")
        if self.batch % self.dp:
            raise InvalidInputError(f"batch={self.batch} must be a multiple of dp={self.dp}")
        if (self.batch // self.dp) % self.num_microbatches:
            raise InvalidInputError(
                f"batch={self.batch} must be a multiple of dp*pp = {self.dp}*{self.pp}, or batch/dp at most pp"
            )

    @property
    def group(self) -> int:
        """Devices of one stage."""
        return self.dp * self.tp

    @property
    def num_devices(self) -> int:
        """Devices of one replica."""
        return self.pp * self.group

    @property
    def num_microbatches(self) -> int:
        """Microbatches in flight: one per stage, unless a dp rank has fewer sequences than stages."""
        return min(self.pp, self.batch // self.dp)

    @property
    def sequences(self) -> int:
        """Sequences of one microbatch on one dp rank."""
        return self.batch // self.dp // self.num_microbatches


def partition(num_layers: int, pp: int) -> tuple[int, ...]:
    """Layers of each of ``pp`` stages (at most ``num_layers``), as even as can be; see `autoshard.sharding.stages`."""
    short, extra = divmod(num_layers, pp)
    counts = [short] * pp
    order = [*range(pp - 2, -1, -1), pp - 1]
    for stage in order[:extra]:
        counts[stage] += 1
    return tuple(counts)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMesh:
    """The refined mesh of one stage: ``dims`` are (name, size) from the outermost, ``views`` name runs of them.

    A view is a tuple of consecutive dim names; it may be flattened into one dim of that name. Every axis has a view
    of at least one dim, possibly of size one.
    """

    dims: tuple[tuple[str, int], ...]
    views: tuple[tuple[Axis, tuple[str, ...]], ...]

    def view(self, axis: Axis) -> tuple[str, ...]:
        """Names of the refined dims of an axis; empty if no dim is in it (then its size is one)."""
        return dict(self.views)[axis]

    def size(self, axis: Axis) -> int:
        """Number of ranks along an axis."""
        sizes = dict(self.dims)
        return math.prod(sizes[name] for name in self.view(axis))


def kv_split(tp: int, kv_heads: int) -> int:
    """Ranks of tp that hold different key/value heads: tp itself, or kv_heads when there are fewer."""
    return min(tp, kv_heads)


def stage_mesh(dp: int, tp: int, ep: int, kv: int) -> StageMesh:
    """Refine a stage of dp * tp devices so that dp, ep and the key/value split ``kv`` of tp are boundaries.

    Each boundary contributes a dim, of size one where two boundaries coincide, so that a view never vanishes except
    the intersections (``tp_ep`` ...) of directions that do not meet.

    Raises:
        InvalidInputError: when the boundaries do not nest (``dp * kv`` against ``ep``).
    """
    group = dp * tp
    marks = sorted([dp, ep, dp * kv])
    edges = [1, *marks, group]
    if any(b % a for a, b in zip(edges, edges[1:], strict=False)):
        raise InvalidInputError(
            f"dp={dp}, ep={ep} and key/value split {kv} of tp={tp} do not nest: {marks} must divide each other in turn"
        )
    # Positions of the boundaries in the sorted list; equal marks keep dp <= dp*kv, so every view gets its dim.
    order = sorted([(dp, 0, "dp"), (ep, 1, "ep"), (dp * kv, 2, "kv")])
    cut = {name: i + 1 for i, (_, _, name) in enumerate(order)}
    dims: list[tuple[str, int]] = []
    members: dict[str, list[str]] = {axis: [] for axis in get_args(Axis)}
    for i, (low, high) in enumerate(zip(edges, edges[1:], strict=False)):
        outer = "dp" if i < cut["dp"] else "tp"
        inner = "ep" if i < cut["ep"] else "etp"
        part = "" if outer == "dp" else ("kv" if i < cut["kv"] else "rep")
        name = "_".join(x for x in (outer, inner, part) if x)
        dims.append((name, high // low))
        for axis in (outer, inner, f"{outer}_{inner}", f"tp_{part}" if part else None):
            if axis is not None:
                members[axis].append(name)
    views = tuple((axis, tuple(members[axis])) for axis in get_args(Axis))
    return StageMesh(dims=tuple(dims), views=views)
