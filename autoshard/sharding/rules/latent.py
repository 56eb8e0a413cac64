"""Latent attention core: 0 gives every rank its heads, none all of them.

Every rank keeps the whole latent, and so the whole latent cache; queries and the expanded latent arrive by heads. The
choice of keys (sparse attention) is the same on every rank.
"""

from autoshard.ir import LatentAttention
from autoshard.sharding.layout import R, S, TensorAxes
from autoshard.sharding.option import Option, Pad


def options(op: LatentAttention, axes: TensorAxes, *, padded: bool = False) -> tuple[Option, ...]:
    """Choices of a core with heads on ``axes``; inputs are (q, kv_b, latent and rope key[, chosen keys]).

    Heads may be filled up if the matrices around are (``padded``).
    """
    axis = axes.shard
    n = len(op.inputs)
    return (
        Option(
            choice=0,
            needs=(S, S, *(R,) * (n - 2)),
            yields=S,
            params=tuple(() for _ in op.params),
            divides=((op.heads.size, axis, "heads"),),
            split_out=axis,
            pads=(Pad("heads", "asked"),) if padded else (),
        ),
        Option(choice=None, needs=(R,) * n, yields=R, params=tuple(() for _ in op.params)),
    )
