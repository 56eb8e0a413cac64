"""Seconds of kernels and collectives, batched over strategies. numpy only; never imports torch."""

from autoshard.cost.arrays import FloatArray
from autoshard.cost.attention import (
    attention_decode_s,
    attention_prefill_s,
    decode_law_s,
    mla_decode_law_s,
    mla_decode_s,
    mla_prefill_s,
    prefill_law_s,
)
from autoshard.cost.collectives import collective_law_s, collective_s
from autoshard.cost.dispatch import dispatch_s
from autoshard.cost.gemm import fused_experts_law_s, gemm_law_s, gemm_s, grouped_gemm_s, grouped_law_s
from autoshard.cost.kernels import Kernels
from autoshard.cost.memory import memory_op_s, scan_s
from autoshard.cost.moe import choice_shares, experts_touched, imbalance, most_touched
from autoshard.cost.routing import power_law_load
from autoshard.cost.serving import ServingLaw, serving_engines, serving_law, takes_turns

__all__ = [
    "FloatArray",
    "Kernels",
    "ServingLaw",
    "attention_decode_s",
    "attention_prefill_s",
    "choice_shares",
    "collective_law_s",
    "collective_s",
    "decode_law_s",
    "dispatch_s",
    "experts_touched",
    "fused_experts_law_s",
    "gemm_law_s",
    "gemm_s",
    "grouped_gemm_s",
    "grouped_law_s",
    "imbalance",
    "memory_op_s",
    "mla_decode_law_s",
    "mla_decode_s",
    "mla_prefill_s",
    "most_touched",
    "power_law_load",
    "prefill_law_s",
    "scan_s",
    "serving_engines",
    "serving_law",
    "takes_turns",
]
