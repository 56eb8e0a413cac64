"""Attention core: 0 gives every rank its heads (and, as far as they go round, its kv heads); none all heads.

Parameters of a core are vectors over the heads (sinks). A core whose queries, keys and values are cut from one
projection, or come from something else than projections, runs replicated: such modules cut at the width of the whole
model, which a shard does not have.
"""

from autoshard.ir import Attention
from autoshard.sharding.layout import R, S, TensorAxes
from autoshard.sharding.option import Option, ParamSharding


def options(op: Attention, axes: TensorAxes, *, separate: bool = True) -> tuple[Option, ...]:
    """Choices of an attention core with query heads on ``axes``; inputs are (q, k, v, ...) if ``separate``.

    What follows (an indexer's choice of keys) is the same for all heads.
    """
    axis = axes.shard
    n = len(op.inputs)
    whole = Option(choice=None, needs=(R,) * n, yields=R, params=tuple(() for _ in op.params))
    if not separate:
        return (whole,)
    return (
        Option(
            choice=0,
            needs=(S, S, S, *(R,) * (n - 3)),
            yields=S,
            params=tuple((ParamSharding(axis=axis, dim=0),) for _ in op.params),
            divides=((op.heads.size, axis, "heads"), (op.kv_heads.size, "tp_kv", "kv_heads")),
            split_out=axis,
        ),
        whole,
    )
