"""What a sharding choice of a fused op means: which layouts it needs and yields, and where its parameters go."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from autoshard.ir import Param
from autoshard.sharding.layout import Axis, Layout, Step
from autoshard.sharding.padding import PLAIN, Grain, Padding, fits, padded_width

Choice = int | None
"""0: shard the output features; 1: shard the contracted features; None: replicate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParamSharding:
    """Which dim of a parameter is split over which axis; ``packed`` > 1 splits each of that many parts alike.

    With ``member`` = (i, n) the parameter is one of n alike of which each rank of the axis has a run: one holds it.
    A dim that does not divide is filled up in pieces of ``grain`` (`autoshard.sharding.padding`).
    """

    axis: Axis
    dim: int
    packed: int = 1
    grain: Grain = PLAIN
    member: tuple[int, int] | None = None


class Pad(NamedTuple):
    """When the width called ``what`` in `Option.divides` is filled up if it does not divide, and in which pieces."""

    what: str
    when: Padding
    grain: Grain = PLAIN


def by_heads(param: Param, axis: Axis) -> tuple[ParamSharding, ...]:
    """The sharding of a parameter of a module that is split by heads over ``axis``.

    Equal parts are one (strided) shard. Unequal ones have no placement in DTensor: the parameter stays whole, and a
    rank picks its rows when it uses them.
    """
    if len(set(param.parts)) != 1:
        return ()
    return (ParamSharding(axis=axis, dim=param.split_dim, packed=len(param.parts)),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One choice of one fused op.

    ``needs`` has a layout per input, ``yields`` is the layout of the output before it is delivered. ``internal`` are
    collectives in the op's own forward. ``params`` has an entry per parameter of the op: its shardings.
    ``divides`` lists (size, axis, what): the axis must divide the size, or fill it up as ``pads`` says. ``split_in`` /
    ``split_out`` are the axes that divide the op's contracted and produced width in its local work, in pieces of
    ``grain``.
    """

    choice: Choice
    needs: tuple[Layout, ...]
    yields: Layout
    params: tuple[tuple[ParamSharding, ...], ...] = ()
    internal: tuple[Step, ...] = ()
    divides: tuple[tuple[int, Axis, str], ...] = ()
    split_in: Axis | None = None
    split_out: Axis | None = None
    pads: tuple[Pad, ...] = ()
    grain: Grain = PLAIN

    def undivided(self, sizes: Mapping[str, int], *, uneven: bool) -> str | None:
        """The first width that its axis neither divides nor may fill up, in words; None if there is none."""
        pads = {p.what: p for p in self.pads}
        for size, over, what in self.divides:
            pad, ranks = pads.get(what, Pad(what, "never")), sizes[over]
            if padded_width(size, ranks, grain=pad.grain) == size and size % ranks == 0:
                continue
            if pad.when == "never" or (pad.when == "asked" and not uneven):
                return f"{what} {size} does not divide by {over}={ranks}"
            if not fits(size, ranks, grain=pad.grain):
                return f"{what} {size} leaves some of {over}={ranks} ranks without any"
        return None
