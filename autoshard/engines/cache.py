"""Bytes of KV cache and recurrent state that one request holds on one rank.

A layer of plain attention holds the kv heads of its rank (copied where tp exceeds them); a latent cache, and the keys
of an indexer, are whole on every rank; a window bounds the tokens held, an engine may hold a step's tokens besides,
and keys that stand for several tokens are held for all of them; a mixer keeps its state whatever the length, split by
heads where the engine splits mixers or our own ranks can. Tokens come in blocks.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from autoshard.engines.profile import Engine
from autoshard.ir import Attention, Block, FusedOp, Indexer, LatentAttention, Mixer, Opaque
from autoshard.sharding.space import options
from autoshard.units import dtype_bytes


def held_tokens(op: FusedOp, context: int, block_tokens: int, window_slack: float) -> int:
    """Tokens of one request that a layer's cache holds, in whole blocks."""
    window = getattr(op, "window", None)
    tokens = float(context)
    if window is not None:
        tokens = min(tokens, window - 1 + window_slack if window_slack else float(window))
    blocks = math.ceil(tokens / block_tokens)
    if window is not None and window_slack and tokens < context:
        blocks += 1  # a window need not start at a block's edge
    return blocks * block_tokens


def request_bytes(
    block: Block, *, context: int, kv_dtype: str, engine: Engine, facts: Mapping[str, Any], window_slack: float
) -> float:
    """Bytes of one request on one rank in one instance of a block."""
    tp = int(facts["tp"])
    total = 0.0
    for op in block.ops:
        if isinstance(op, Mixer):
            total += op.state_bytes / (tp if _splits(engine, block, op, tp) else 1)
        if isinstance(op, Opaque):
            total += op.state_bytes + op.cache_bytes_per_token * context
        if not isinstance(op, Attention | LatentAttention | Indexer):
            continue
        elements = op.kv_elements_per_token
        if isinstance(op, Attention):
            elements = elements // op.kv_heads.size * math.ceil(op.kv_heads.size / tp)
        tokens = held_tokens(op, context, engine.memory.block_tokens, window_slack)
        total += tokens * elements * dtype_bytes(kv_dtype)
        if isinstance(op, Attention) and op.pooled is not None:
            kept = held_tokens(replace(op, window=None), context, engine.memory.block_tokens, window_slack)
            total += kept / op.pooled * elements * dtype_bytes(kv_dtype)
    return total


def _splits(engine: Engine, block: Block, op: Mixer, tp: int) -> bool:
    if engine.name != "torch":  # our own ranks; engines have the one rule
        return engine.splits_mixers
    by_heads = [option for option in options(block, op) if option.choice is not None]
    return any(all(size % tp == 0 for size, _, _ in option.divides) for option in by_heads)
