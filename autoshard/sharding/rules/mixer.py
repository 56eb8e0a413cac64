"""Recurrent mixers, indexers and combinations.

A mixer runs by heads (0) where its module was found to do the same on a share of them; what it reads arrives by heads,
save for what every head needs (the B, C and dt of a Mamba). Other ops of the module follow its first mixer, as the gate
of an attention core follows the core. An indexer chooses for all heads alike and runs whole.
"""

from autoshard.ir import Combine, Indexer, Mixer
from autoshard.sharding.layout import R, S, TensorAxes
from autoshard.sharding.option import Option, by_heads


def options(op: Mixer | Combine | Indexer, axes: TensorAxes) -> tuple[Option, ...]:
    """Choices of a mixer, an indexer or a combination of tensors on ``axes``."""
    n = len(op.inputs)
    axis = axes.shard
    whole = Option(choice=None, needs=(R,) * n, yields=R, params=tuple(() for _ in op.params))
    split_by = op.split if isinstance(op, Mixer) else None
    if isinstance(op, Indexer) or (op.follows is None and (split_by is None or split_by.size == 1)):
        return (whole,)
    heads = op.width.size if split_by is None else split_by.size
    split = Option(
        choice=0,
        needs=tuple(R if name in op.whole else S for name in op.inputs),
        yields=S,
        params=tuple(by_heads(p, axis) for p in op.params),
        divides=((heads, axis, op.width.name if split_by is None else "heads"),),
        split_out=axis,
    )
    return (split, whole)
