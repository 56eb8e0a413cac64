"""Activation: 0 on a sharded intermediate, none on a replicated one. Opaque ops only run replicated."""

from autoshard.ir import Activation, Opaque
from autoshard.sharding.layout import R, S, TensorAxes
from autoshard.sharding.option import Option, Pad


def options(op: Activation | Opaque, axes: TensorAxes, *, unpadded: bool = False) -> tuple[Option, ...]:
    """Choices of a pointwise op over a tensor on ``axes``; ``unpadded`` if its producer is never filled up."""
    n = len(op.inputs)
    whole = Option(choice=None, needs=(R,) * n, yields=R, params=tuple(() for _ in op.params))
    if isinstance(op, Opaque):
        return (whole,)
    axis = axes.shard
    name = op.width.name
    split = Option(
        choice=0,
        needs=(S,) * n,
        yields=S,
        divides=((op.width.size, axis, name),),
        split_out=axis,
        pads=() if unpadded else (Pad(name, "asked"),),
    )
    return (split, whole)
