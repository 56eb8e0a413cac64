"""What a sharding choice of a fused op means: which layouts it needs and yields, and where its parameters go."""

from dataclasses import dataclass

from autoshard.ir import Param
from autoshard.sharding.layout import Axis, Layout, Step

Choice = int | None
"""0: shard the output features; 1: shard the contracted features; None: replicate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParamSharding:
    """Which dim of a parameter is split over which axis; ``packed`` > 1 splits each of that many parts alike."""

    axis: Axis
    dim: int
    packed: int = 1


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
    ``divides`` lists (size, axis, what): the axis must divide the size. ``split_in`` / ``split_out`` are the axes
    that divide the op's contracted and produced width in its local work.
    """

    choice: Choice
    needs: tuple[Layout, ...]
    yields: Layout
    params: tuple[tuple[ParamSharding, ...], ...] = ()
    internal: tuple[Step, ...] = ()
    divides: tuple[tuple[int, Axis, str], ...] = ()
    split_in: Axis | None = None
    split_out: Axis | None = None
