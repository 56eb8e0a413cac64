"""Attention core: 0 gives every rank its heads (and, as far as they go round, its kv heads); none all heads."""

from autoshard.ir import Attention
from autoshard.sharding.layout import R, S, TensorAxes
from autoshard.sharding.option import Option


def options(op: Attention, axes: TensorAxes) -> tuple[Option, ...]:
    """Choices of an attention core with query heads on ``axes``; inputs are (q, k, v)."""
    axis = axes.shard
    return (
        Option(
            choice=0,
            needs=(S, S, S),
            yields=S,
            params=tuple(() for _ in op.params),
            divides=((op.heads.size, axis, "heads"), (op.kv_heads.size, "tp_kv", "kv_heads")),
            split_out=axis,
        ),
        Option(choice=None, needs=(R, R, R), yields=R, params=tuple(() for _ in op.params)),
    )
