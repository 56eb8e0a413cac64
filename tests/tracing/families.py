"""Small configs of many architectures: real classes, sizes chosen here, every kind of layer at least once."""

from collections.abc import Iterable
from typing import Any

import pytest
from _pytest.mark import ParameterSet

_BASE: dict[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
_MLA: dict[str, Any] = {
    "num_key_value_heads": 8,
    "intermediate_size": 96,
    "moe_intermediate_size": 32,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 12,
    "v_head_dim": 16,
    "first_k_dense_replace": 1,
}
_DSA: dict[str, Any] = {"index_n_heads": 4, "index_head_dim": 16, "index_topk": 96}
_GROUPS: dict[str, Any] = {"n_group": 2, "topk_group": 1}
_LINEAR: dict[str, Any] = {
    "num_hidden_layers": 4,
    "head_dim": 16,
    "intermediate_size": 96,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 48,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
    "linear_conv_kernel_dim": 4,
}
_LOCAL: dict[str, Any] = {"intermediate_size": 96, "num_local_experts": 8, "num_experts_per_tok": 2}

FAMILIES: dict[str, dict[str, Any]] = {
    "deepseek_v2": {**_BASE, **_MLA, "topk_method": "greedy"},
    "deepseek_v3": {**_BASE, **_MLA, **_GROUPS},
    "deepseek_v32": {**_BASE, **_MLA, **_GROUPS, **_DSA},
    "glm_moe_dsa": {**_BASE, **_MLA, **_DSA, "n_group": 1, "topk_group": 1},
    "gpt_oss": {**_BASE, **_LOCAL, "head_dim": 16, "sliding_window": 8},
    "qwen2_moe": {
        **_BASE,
        "intermediate_size": 96,
        "moe_intermediate_size": 48,
        "shared_expert_intermediate_size": 80,
        "num_experts": 8,
        "num_experts_per_tok": 2,
    },
    "qwen3_next": {**_BASE, **_LINEAR},
    "qwen3_5_moe_text": {**_BASE, **_LINEAR},
    "phimoe": {**_BASE, **_LOCAL, "attention_bias": True, "lm_head_bias": True},
    "granitemoe": {**_BASE, **_LOCAL, "tie_word_embeddings": True},
    "minimax_m2": {**_BASE, **_LOCAL, "head_dim": 16},
    "glm4_moe": {
        **_BASE,
        "intermediate_size": 96,
        "moe_intermediate_size": 32,
        "head_dim": 16,
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "first_k_dense_replace": 1,
        "n_group": 1,
        "topk_group": 1,
        "use_qk_norm": True,
        "attention_bias": True,
    },
    "hunyuan_v1_moe": {**_BASE, "intermediate_size": 96, "num_experts": 8, "moe_topk": 2, "head_dim": 16},
    "gemma2": {**_BASE, "intermediate_size": 96, "head_dim": 16, "sliding_window": 8},
    "llama4_text": {
        **_BASE,
        "num_hidden_layers": 4,
        "intermediate_size": 48,
        "intermediate_size_mlp": 96,
        "head_dim": 16,
        "num_local_experts": 8,
        "num_experts_per_tok": 1,
        "interleave_moe_layer_step": 2,
        "attention_chunk_size": 32,
    },
    "nemotron_h": {
        **_BASE,
        "num_hidden_layers": 3,
        "layers_block_type": ["mamba", "moe", "attention"],
        "head_dim": 16,
        "intermediate_size": 96,
        "moe_intermediate_size": 32,
        "moe_shared_expert_intermediate_size": 48,
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "n_group": 1,
        "topk_group": 1,
        "mamba_num_heads": 8,
        "mamba_head_dim": 16,
        "ssm_state_size": 16,
        "n_groups": 2,
        "conv_kernel": 4,
        "chunk_size": 64,
    },
    "minimax": {
        **_BASE,
        **_LOCAL,
        "num_hidden_layers": 4,
        "head_dim": 16,
        "block_size": 32,
        "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"],
    },
    "deepseek_v4": {
        **_BASE,
        **_MLA,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "qk_rope_head_dim": 8,
        "o_groups": 2,
        "o_lora_rank": 16,
        "num_hidden_layers": 3,
        "num_hash_layers": 0,
        "layer_types": ["sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"],
        "compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 32},
        "index_n_heads": 4,
        "index_head_dim": 16,
        "index_topk": 8,
        "sliding_window": 16,
        "hc_sinkhorn_iters": 2,
    },
    "jamba": {
        **_BASE,
        "intermediate_size": 96,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "expert_layer_period": 2,
        "expert_layer_offset": 1,
        "mamba_d_state": 16,
        "mamba_d_conv": 4,
        "mamba_expand": 2,
        "mamba_dt_rank": 8,
    },
}
"""Configs by model type."""

SLOW = ("deepseek_v4", "jamba", "qwen3_5_moe_text")
"""Families that take several CPU seconds to trace."""


def marked(names: Iterable[str]) -> list[ParameterSet]:
    """The names in order as test parameters; the slow ones are wide."""
    return [pytest.param(n, marks=[pytest.mark.wide] if n in SLOW else []) for n in sorted(names)]
