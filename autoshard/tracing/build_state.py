"""What a layer was seen to keep for a sequence, and which of its ops keep it.

Keys and values are an attention core's, what else grows with the sequence is that of pooled keys and indexers, what
does not grow is a mixer's. What is left belongs to an opaque op: it takes memory, though nobody knows what for.
"""

from dataclasses import replace

from autoshard.ir import Attention, Dim, FusedOp, Indexer, LatentAttention, Mixer, Opaque
from autoshard.tracing.state import Kept


def account_for_state(ops: list[FusedOp], layer: str, kept: Kept) -> None:
    """Give what no op of ``ops`` (those of ``layer``) keeps to their first opaque op, or to a new one at the end."""
    cores = [op for op in ops if isinstance(op, Attention | LatentAttention)]
    pooled = [op for op in cores if isinstance(op, Attention) and op.pooled is not None]
    grows = bool(pooled) or any(isinstance(op, Indexer) for op in ops)
    state = 0.0 if any(isinstance(op, Mixer) for op in ops) else kept.state_bytes
    cache = (0.0 if cores else kept.key_bytes_per_token) + (0.0 if grows else kept.grown_bytes_per_token)
    if not state and not cache:
        return
    for i, op in enumerate(ops):
        if isinstance(op, Opaque):
            ops[i] = replace(op, state_bytes=state, cache_bytes_per_token=cache)
            return
    names = {op.name for op in ops}
    ops.append(
        Opaque(
            name=next(n for n in ("opaque", "opaque_state") if n not in names),
            fqn=layer,
            inputs=(),
            width=Dim(name="features", size=1),
            state_bytes=state,
            cache_bytes_per_token=cache,
            reason="kept for a sequence by the model's cache, by no op that is recognised",
        )
    )
