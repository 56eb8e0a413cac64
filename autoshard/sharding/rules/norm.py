"""A norm: 0 keeps the feature dim sharded, 1 the tokens of the residual, none replicates.

A row that lies on several ranks needs the mean (and the mean of squares for LayerNorm) over them: one small
all_reduce of ``num_statistics`` numbers a row, in at least float32. Per-head q/k norms, and norms of a mixer that stay
within its heads, have whole rows on a rank, as rows of split tokens are. Norms of a low-rank latent run replicated:
their input is needed whole anyway.
"""

from autoshard.ir import Norm
from autoshard.sharding.layout import R, S, Step, T, TensorAxes
from autoshard.sharding.option import Option, Pad, ParamSharding, by_heads
from autoshard.sharding.padding import PLAIN, Grain


def options(op: Norm, axes: TensorAxes, *, out_of: Grain | None = None) -> tuple[Option, ...]:
    """Choices of a norm over a tensor on ``axes``; rows that are whole heads are filled up in pieces of ``out_of``."""
    whole = Option(choice=None, needs=(R,), yields=R, params=tuple(() for _ in op.params))
    if op.follows is None and op.width.name != "hidden":
        return (whole,)
    axis = axes.shard
    if op.within_heads:
        params = tuple(by_heads(p, axis) for p in op.params)
        divides = ((op.width.size, axis, op.width.name),)
        return (Option(choice=0, needs=(S,), yields=S, params=params, divides=divides, split_out=axis), whole)
    whole_row = op.group == op.width.size
    statistics = Step(kind="all_reduce", axis=axis, rows="local", width=0, statistics=op.num_statistics)
    heads = op.follows is not None and not whole_row and out_of is not None
    grain = out_of if heads and out_of is not None else PLAIN
    whole_tokens = Option(choice=1, needs=(T,), yields=T, params=tuple(() for _ in op.params), split_out=axes.full)
    return (
        Option(
            choice=0,
            needs=(S,),
            yields=S,
            params=tuple((ParamSharding(axis=axis, dim=0),) if whole_row else () for _ in op.params),
            internal=(statistics,) if whole_row else (),
            divides=((op.width.size // (1 if whole_row else op.group), axis, op.width.name),),
            split_out=axis,
            pads=(Pad(op.width.name, "asked", (grain[0], 1)),) if heads else (),
            grain=grain,
        ),
        *((whole_tokens,) if op.follows is None else ()),
        whole,
    )
