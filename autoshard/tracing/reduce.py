"""Small models of the same architecture, by rule from the names that configs give their sizes.

What shapes the computation stays (kinds of layer, gating, activation, biases, q/k norms, ties, windows, top-k, grouped
attention); what only makes it big shrinks. Every dimension that can be sharded is a multiple of all degrees asked for,
with shards a multiple of 8 wide (grouped GEMMs align rows to 16 bytes), and widths differ from each other so that a
mix-up fails.
"""

import math
from collections.abc import Mapping
from typing import Any

from torch import nn

from autoshard.tracing.fold import find_stacks

EXPERT_COUNTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
"""Names under which configs give the number of routed experts."""
TOP_K = ("num_experts_per_tok", "moe_k", "moe_topk")
"""Names under which configs give the experts per token."""
_HEAD_DIM = 16
_MANY = 16
"""Ranks above which widths are fewer times their number: experts, hidden dim and widths all grow with it."""
_INNER = {
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "index_n_heads": 4,
    "index_head_dim": 16,
    "index_topk": 8,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "mamba_num_heads": 8,
    "mamba_head_dim": 8,
    "mamba_dt_rank": 8,
    "ssm_state_size": 16,
}
"""Sizes inside latent attention, indexers, linear attention and state-space mixers, which today run whole."""
_TOKEN_IDS = ("pad_token_id", "bos_token_id", "eos_token_id")


def depth_with_all_kinds(model: nn.Module) -> int:
    """Layers, from the first, that hold one of every kind; at least two (or all there are)."""
    depth = 0
    for stack in find_stacks(model):
        last = max(stack.layers.index(kind[0]) for kind in stack.kinds)
        depth = max(depth, min(len(stack.layers), max(2, last + 1)))
    return depth


def reduced_fields(
    config: Mapping[str, Any],
    *,
    depth: int,
    degrees: tuple[int, ...],
    tp: int,
    ep: int,
    plan_tp: int | None = None,
) -> dict[str, Any]:
    """The fields to change in ``config`` (all fields of it, defaults included) for its reduced form.

    ``degrees`` must divide every sharded dimension, ``ep`` the experts only. If ``plan_tp`` exceeds the kv heads of
    ``config``, the reduced kv heads stay below ``tp`` and divide it.
    """
    unit = math.lcm(*degrees)
    ffn, routed, shared, vocab = (24, 16, 8, 32) if unit <= _MANY else (3, 2, 1, 4)
    heads, kv_heads = _heads(config, unit, tp, plan_tp or tp)
    width = heads * _HEAD_DIM
    has_head_dim = config.get("head_dim") is not None
    square = not has_head_dim or config["hidden_size"] == config["num_attention_heads"] * config["head_dim"]
    fields: dict[str, Any] = {
        "num_hidden_layers": depth,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": _HEAD_DIM,
        "hidden_size": width if square else width + 8 * unit,
        "intermediate_size": ffn * unit,
        "moe_intermediate_size": routed * unit,
        "intermediate_size_mlp": ffn * unit,
        "shared_expert_intermediate_size": shared * unit,
        "moe_shared_expert_intermediate_size": shared * unit,
        "vocab_size": vocab * unit,
        "max_position_embeddings": 256,
    }
    fields = {k: v for k, v in {**fields, **_INNER}.items() if config.get(k)}
    if config.get("qk_rope_head_dim"):  # latent attention: heads have the widths above, and each its own keys
        fields.pop("head_dim", None)
        fields["num_key_value_heads"] = heads
    if config.get("mamba_num_heads") and config.get("n_groups"):
        fields["n_groups"] = 2
    if (config.get("n_group") or 1) > 1:
        fields |= {"n_group": 2, "topk_group": 1}
    fields |= {k: None for k in _TOKEN_IDS if config.get(k) is not None}
    if config.get("sliding_window"):
        fields["sliding_window"] = 8
    for key in EXPERT_COUNTS:
        if config.get(key):
            top_k = next((int(config[k]) for k in TOP_K if config.get(k)), 1)
            # Enough experts to leave half of them unchosen by a token, up to the 8 of 128 that models use.
            whole = math.lcm(unit, ep)
            experts = whole * math.ceil(max(2 * whole, 2 * min(top_k, 8)) / whole)
            fields[key] = experts
            fields |= {k: min(top_k, experts) for k in TOP_K if config.get(k)}
    # Some configs give the kind of every layer instead of their number.
    kinds = [v for k, v in config.items() if "layer" in k and isinstance(v, (list, tuple))]
    num_layers = config.get("num_hidden_layers") or max(map(len, kinds), default=0)
    for key, value in config.items():
        if isinstance(value, (list, tuple)) and key not in fields:
            if len(value) == num_layers:
                fields[key] = list(value[:depth])
            elif key.endswith("_layers") and all(isinstance(i, int) for i in value):
                fields[key] = [i for i in value if i < depth]
    return fields


def _heads(config: Mapping[str, Any], unit: int, tp: int, plan_tp: int) -> tuple[int, int]:
    """(query heads, kv heads) of the reduced model."""
    full = int(config["num_attention_heads"])
    full_kv = int(config.get("num_key_value_heads") or full)
    if plan_tp > full_kv and tp > 1:
        wanted = max(1, tp * full_kv // plan_tp)
        kv_heads = max(d for d in range(1, tp) if tp % d == 0 and d <= max(wanted, 1))
    else:
        kv_heads = unit
    if full == full_kv:
        return kv_heads, kv_heads
    return math.lcm(2 * kv_heads, unit), kv_heads
