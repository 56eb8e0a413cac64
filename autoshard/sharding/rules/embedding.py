"""Token embedding: 0 splits the vocabulary (every rank looks up what it has, the sum is partial), 1 the hidden dim."""

from autoshard.ir import Embedding
from autoshard.sharding.layout import P, R, S, TensorAxes
from autoshard.sharding.option import Option, Pad, ParamSharding


def options(op: Embedding, axes: TensorAxes) -> tuple[Option, ...]:
    """Choices of an embedding; token ids are known to all ranks of ``axes``."""
    axis = axes.shard
    return (
        Option(
            choice=0,
            needs=(R,),
            yields=P,
            params=((ParamSharding(axis=axis, dim=0),),),
            divides=((op.vocab.size, axis, "vocab"),),
            pads=(Pad("vocab", "always"),),
        ),
        Option(
            choice=1,
            needs=(R,),
            yields=S,
            params=((ParamSharding(axis=axis, dim=1),),),
            divides=((op.hidden.size, axis, "hidden"),),
            pads=(Pad("hidden", "asked"),),
            split_out=axis,
        ),
        Option(choice=None, needs=(R,), yields=R, params=((),)),
    )
