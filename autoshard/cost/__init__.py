"""Seconds of kernels and collectives, batched over strategies. numpy only; never imports torch."""

from autoshard.cost.arrays import FloatArray
from autoshard.cost.collectives import collective_s
from autoshard.cost.compute import attention_decode_s, attention_prefill_s, gemm_s, grouped_gemm_s, memory_op_s
from autoshard.cost.moe import experts_touched, imbalance

__all__ = [
    "FloatArray",
    "attention_decode_s",
    "attention_prefill_s",
    "collective_s",
    "experts_touched",
    "gemm_s",
    "grouped_gemm_s",
    "imbalance",
    "memory_op_s",
]
