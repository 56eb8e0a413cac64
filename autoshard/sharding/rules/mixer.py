"""Recurrent mixers, indexers and combinations: replicated, save for the gate of an attention core, which follows it.

A mixer could be split by its heads. Its convolution runs over channels of q, k and v side by side in unequal parts, for
which a parameter has no single placement, so that today's ranks run it whole. An indexer chooses for all heads alike.
"""

from autoshard.ir import Combine, Indexer, Mixer
from autoshard.sharding.layout import R, S, TensorAxes
from autoshard.sharding.option import Option


def options(op: Mixer | Combine | Indexer, axes: TensorAxes) -> tuple[Option, ...]:
    """Choices of a mixer, an indexer or a combination of tensors on ``axes``."""
    n = len(op.inputs)
    whole = Option(choice=None, needs=(R,) * n, yields=R, params=tuple(() for _ in op.params))
    if not isinstance(op, Combine) or op.follows is None:
        return (whole,)
    axis = axes.shard
    split = Option(
        choice=0,
        needs=(S,) * n,
        yields=S,
        params=tuple(() for _ in op.params),
        divides=((op.width.size, axis, op.width.name),),
        split_out=axis,
    )
    return (split, whole)
