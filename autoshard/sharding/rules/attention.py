"""Attention core: 0 gives every rank its heads (and, as far as they go round, its kv heads); none all heads.

In the wider space (`autoshard.sharding.wider`) 1 splits keys and values over their tokens where kv heads do not go
round: ranks with the same kv heads gather their queries and exchange partial outputs.

Parameters of a core are vectors over the heads (sinks). A core whose queries, keys and values are cut from one
projection has that projection delivered by heads, if its module was found to work on a share of them: as many shares
as there are kv heads at most, since such a module cannot be given a kv head twice.
"""

from dataclasses import replace

from autoshard.ir import Attention
from autoshard.sharding.layout import R, S, Step, TensorAxes
from autoshard.sharding.option import Option, Pad, ParamSharding
from autoshard.sharding.padding import PLAIN


def sequence_options(op: Attention, axes: TensorAxes) -> tuple[Option, ...]:
    """The choice that splits keys and values over their tokens, of a core that could be split by heads.

    Rows of the all_to_all hold, per head, a partial output and one float32, the logarithm of its sum of exponentials.
    """
    by_heads = options(op, axes)[0]
    if by_heads.choice != 0 or op.split is not None:
        return ()
    heads = op.heads.size
    queries = Step(kind="all_gather", axis="tp_rep", rows="local", width=heads * op.qk_dim, split=("tp_kv",))
    partial = Step(
        kind="all_to_all", axis="tp_rep", rows="local", width=heads * op.v_dim, statistics=heads, split=("tp_kv",)
    )
    return (replace(by_heads, choice=1, internal=(queries, partial), split_in="tp_rep", pads=(), grain=PLAIN),)


def options(op: Attention, axes: TensorAxes, *, separate: bool = True, padded: bool = False) -> tuple[Option, ...]:
    """Choices of an attention core with query heads on ``axes``; inputs are (q, k, v, ...) if ``separate``.

    What follows (an indexer's choice of keys) is the same for all heads. ``padded`` if the matrices around it can be
    filled up by heads, kv heads with all their query heads, or the query heads of each.
    """
    axis = axes.shard
    n = len(op.inputs)
    whole = Option(choice=None, needs=(R,) * n, yields=R, params=tuple(() for _ in op.params))
    if op.unsplit or (not separate and op.split is None):
        return (whole,)
    grain = (op.heads.size // op.kv_heads.size, 1) if padded else PLAIN
    kv = (op.kv_heads.size, "tp_kv", "kv_heads") if op.split is None else (op.split.size, axis, "kv_heads")
    return (
        Option(
            choice=0,
            needs=(*(S,) * min(n, 3), *(R,) * (n - 3)),
            yields=S,
            params=tuple((ParamSharding(axis=axis, dim=0, grain=grain),) for _ in op.params),
            divides=((op.heads.size, axis, "heads"), kv),  # type: ignore[arg-type]
            split_out=axis,
            pads=(Pad("heads", "asked", grain), Pad("kv_heads", "asked")) if padded else (),
            grain=grain,
        ),
        whole,
    )
