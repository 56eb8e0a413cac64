r"""Time of one kernel on one device: a calibrated roofline.

.. math:: t = t_\mathrm{launch} + \max\left(\frac{\mathrm{flops}}{P\,e_c}, \frac{\mathrm{bytes}}{B\,e_m}\right)

with the device's peak ``P`` for the dtype, its memory bandwidth ``B``, and ``e_c, e_m, t_launch`` by kind of kernel
from the device file, where each says what it was fitted to and how well it holds. Prefill attention adds the two terms
instead (6 % against 14 % median error on `attention_prefill_h100`: its softmax and its loads overlap badly).

All sizes are LOCAL to one device: what is left after sharding. Arguments broadcast over strategies; results are seconds
as float64 arrays. Activations are two bytes an element where they leave a kernel; weights and the activations that
enter have the dtype's size. Neglected: L2 reuse, eager launch overhead, and tile quantisation (rounding m up to tiles
of 64 or 128 changed the error on `gemm_h100` by nothing, on `moe_h100` by under 1.5 points).
"""

import numpy as np
from numpy.typing import ArrayLike

from autoshard.cost.arrays import FloatArray, floats
from autoshard.hardware import Device, KernelKind
from autoshard.units import dtype_bytes

_ACTIVATION_BYTES = 2.0  # outputs are bfloat16 whatever the weights are


def _output_bytes(dtype: str) -> float:
    return max(_ACTIVATION_BYTES, dtype_bytes(dtype))


def _roofline_s(device: Device, kind: KernelKind, dtype: str, flops: FloatArray, num_bytes: FloatArray) -> FloatArray:
    law = device.kernel(kind, dtype)
    compute_s = flops / (device.peak_flops_per_s(dtype) * law.compute_efficiency)
    memory_s = num_bytes / (device.memory_bytes_per_s * law.memory_efficiency)
    return law.launch_s + np.maximum(compute_s, memory_s)


def gemm_s(device: Device, m: ArrayLike, k: ArrayLike, n: ArrayLike, dtype: str = "bfloat16") -> FloatArray:
    """Time of an ``(m, k) x (k, n)`` product, ``m`` being tokens: ``2 m k n`` FLOPs; weights, input and output once."""
    m, k, n = floats(m), floats(k), floats(n)
    num_bytes = (k * n + m * k) * dtype_bytes(dtype) + m * n * _output_bytes(dtype)
    return _roofline_s(device, "gemm", dtype, 2.0 * m * k * n, num_bytes)


def grouped_gemm_s(
    device: Device,
    pairs: ArrayLike,
    experts_local: ArrayLike,
    experts_touched: ArrayLike,
    k: ArrayLike,
    n: ArrayLike,
    dtype: str = "bfloat16",
) -> FloatArray:
    """Time of one matrix of the routed experts on one rank: ``(pairs, k) x (experts, k, n)``.

    Args:
        device: Where it runs.
        pairs: (token, expert) pairs on this rank, imbalance included.
        experts_local: Experts that the rank holds; no more than these are read.
        experts_touched: Expected experts with at least one token (`autoshard.cost.moe.experts_touched`); only their
            weights are read.
        k: Input features of an expert.
        n: Output features of an expert (gate and up together count as one matrix).
        dtype: Of weights and arithmetic.
    """
    pairs, k, n = floats(pairs), floats(k), floats(n)
    read = np.minimum(floats(experts_touched), floats(experts_local))
    num_bytes = (read * k * n + pairs * k) * dtype_bytes(dtype) + pairs * n * _output_bytes(dtype)
    return _roofline_s(device, "grouped_gemm", dtype, 2.0 * pairs * k * n, num_bytes)


def attention_decode_s(
    device: Device,
    sequences: ArrayLike,
    context: ArrayLike,
    heads: ArrayLike,
    kv_heads: ArrayLike,
    qk_dim: int,
    v_dim: int,
    kv_bytes_per_element: float = 2.0,
) -> FloatArray:
    """Time of the attention core for one new token of each sequence: reads ``context`` cached tokens, writes one.

    ``2 S ctx heads (qk + v)`` FLOPs; bytes are the cache of the local kv heads, the queries and the output.
    """
    sequences, context, heads, kv_heads = floats(sequences), floats(context), floats(heads), floats(kv_heads)
    width = float(qk_dim + v_dim)
    dtype = "bfloat16" if kv_bytes_per_element >= _ACTIVATION_BYTES else "float8_e4m3fn"
    law = device.kernel("attention_decode", dtype)
    cache_bytes = sequences * (context + 1.0) * kv_heads * width * kv_bytes_per_element
    num_bytes = cache_bytes + sequences * heads * width * _ACTIVATION_BYTES
    # Kernels dequantise the cache and compute in 16 bits.
    compute_s = (
        2.0 * sequences * context * heads * width / (device.peak_flops_per_s("bfloat16") * law.compute_efficiency)
    )
    memory_s = num_bytes / (device.memory_bytes_per_s * law.memory_efficiency)
    return law.launch_s + np.maximum(compute_s, memory_s)


def attention_prefill_s(
    device: Device,
    sequences: ArrayLike,
    tokens_per_sequence: ArrayLike,
    mean_context: ArrayLike,
    heads: ArrayLike,
    kv_heads: ArrayLike,
    qk_dim: int,
    v_dim: int,
) -> FloatArray:
    """Time of the attention core over whole prompts, in 16 bits.

    ``mean_context`` is the mean number of keys a token sees: half the prompt under the causal mask, at most a window.
    ``2 S n ctx heads (qk + v)`` FLOPs; bytes are queries, keys, values and the output once.
    """
    sequences, heads, kv_heads = floats(sequences), floats(heads), floats(kv_heads)
    tokens = sequences * floats(tokens_per_sequence)
    width = float(qk_dim + v_dim)
    law = device.kernel("attention_prefill")
    flops = 2.0 * tokens * floats(mean_context) * heads * width
    num_bytes = tokens * (heads + kv_heads) * width * _ACTIVATION_BYTES
    compute_s = flops / (device.peak_flops_per_s("bfloat16") * law.compute_efficiency)
    return law.launch_s + compute_s + num_bytes / (device.memory_bytes_per_s * law.memory_efficiency)


def memory_op_s(device: Device, num_bytes: ArrayLike) -> FloatArray:
    """Time of a pass over memory that computes next to nothing: norm, add, activation, embedding look-up."""
    law = device.kernel("memory")
    return law.launch_s + floats(num_bytes) / (device.memory_bytes_per_s * law.memory_efficiency)
