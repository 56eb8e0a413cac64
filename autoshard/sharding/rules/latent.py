"""Latent attention core: 0 gives every rank its heads, none all of them.

Every rank keeps the whole latent, and so the whole latent cache; queries and the expanded latent arrive by heads. The
choice of keys (sparse attention) is the same on every rank. In the wider space (`autoshard.sharding.wider`) 1 splits
the cache over its tokens: ranks gather all queries and exchange partial outputs.
"""

from dataclasses import replace

from autoshard.ir import LatentAttention
from autoshard.sharding.layout import R, S, Step, TensorAxes
from autoshard.sharding.option import Option, Pad


def sequence_options(op: LatentAttention, axes: TensorAxes) -> tuple[Option, ...]:
    """The choice that splits the latent cache over its tokens, with attention absorbed into the latent.

    Queries are of the latent and rope width, partial outputs of the latent's, each with the float32 logarithm of its
    sum of exponentials.
    """
    heads, latent, axis = op.heads.size, op.latent.size, axes.shard
    queries = Step(kind="all_gather", axis=axis, rows="local", width=heads * (latent + op.rope_dim))
    partial = Step(kind="all_to_all", axis=axis, rows="local", width=heads * latent, statistics=heads)
    return (replace(options(op, axes)[0], choice=1, internal=(queries, partial), split_in=axis, pads=()),)


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
