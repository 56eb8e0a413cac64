"""Bytes of KV cache and recurrent state that one request holds on one rank.

A layer of plain attention holds the kv heads of its rank (copied where tp exceeds them); a latent cache, and the keys
of an indexer, are whole on every rank; a window bounds the tokens held, an engine may hold a step's tokens besides; a
mixer keeps its state whatever the length, split by heads where the engine splits mixers. Tokens come in blocks.
"""

import math
from collections.abc import Mapping
from typing import Any

from autoshard.engines.profile import Engine
from autoshard.ir import Attention, Block, FusedOp, Indexer, LatentAttention, Mixer
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
            total += op.state_bytes / (tp if engine.splits_mixers else 1)
        if not isinstance(op, Attention | LatentAttention | Indexer):
            continue
        elements = op.kv_elements_per_token
        if isinstance(op, Attention):
            elements = elements // op.kv_heads.size * math.ceil(op.kv_heads.size / tp)
        tokens = held_tokens(op, context, engine.memory.block_tokens, window_slack)
        total += tokens * elements * dtype_bytes(kv_dtype)
    return total


def token_bytes(block: Block, *, kv_dtype: str, tp: int) -> float:
    """Bytes that one more token of context costs on one rank in one instance of a block, windows left out."""
    total = 0.0
    for op in block.ops:
        if isinstance(op, Attention | LatentAttention | Indexer) and getattr(op, "window", None) is None:
            elements = op.kv_elements_per_token
            if isinstance(op, Attention):
                elements = elements // op.kv_heads.size * math.ceil(op.kv_heads.size / tp)
            total += elements * dtype_bytes(kv_dtype)
    return total
