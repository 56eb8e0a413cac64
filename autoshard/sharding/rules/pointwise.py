"""Activation: 0 on a sharded intermediate, none on a replicated one. Opaque ops only run replicated."""

from autoshard.ir import Activation, Opaque
from autoshard.sharding.layout import R, S, TensorAxes
from autoshard.sharding.option import Option


def options(op: Activation | Opaque, axes: TensorAxes) -> tuple[Option, ...]:
    """Choices of a pointwise op over a tensor on ``axes``."""
    n = len(op.inputs)
    whole = Option(choice=None, needs=(R,) * n, yields=R, params=tuple(() for _ in op.params))
    if isinstance(op, Opaque):
        return (whole,)
    axis = axes.shard
    split = Option(choice=0, needs=(S,) * n, yields=S, divides=((op.width.size, axis, op.width.name),), split_out=axis)
    return (split, whole)
