r"""Time of attention cores: GQA decode and prefill, and multi-head latent attention (MLA).

Decode splits the cache over compute units. A unit of work is one sequence's kv head: it costs ``unit_s`` on each
compute unit in turn, and overlaps with reading the cache; queries and outputs, and the latency of walking and merging
a split cache (half of it at ``split_tokens``), come on top:

.. math:: t = t_0 + \sigma \frac{c}{c + c_0} + \max\left(\frac{\mathrm{flops}}{P e_c},
   \frac{K (1 + \sqrt{s / K})}{B e_m} \oplus_p \frac{u\,\tau}{N_{SM}}\right) + \frac{Q}{B e_q}

Prefill adds arithmetic (on ``tile`` tokens more than the causal mask needs, and a softmax that counts as
``softmax_width`` head elements), queries and outputs, keys and values, and ``unit_s`` for each tile of 128 queries.
A sliding window is a context of at most the window. All sizes are LOCAL to one device.
"""

import numpy as np
from numpy.typing import ArrayLike

from autoshard.cost.arrays import FloatArray, floats
from autoshard.cost.roofline import overlapped_s, saturated_bytes
from autoshard.hardware import Device, KernelLaw

_ACTIVATION_BYTES = 2.0
_QUERY_TILE = 128.0


def _cache_dtype(kv_bytes_per_element: float) -> str:
    return "bfloat16" if kv_bytes_per_element >= _ACTIVATION_BYTES else "float8_e4m3fn"


def _share(own: float, law: KernelLaw) -> float:
    """An efficiency of its own, or the law's general one."""
    return own if own > 0 else law.memory_efficiency


def _split_s(law: KernelLaw, context: FloatArray) -> FloatArray:
    return law.split_s * context / (context + law.split_tokens) if law.split_s > 0 else np.zeros(1)[0]


def decode_law_s(
    device: Device,
    law: KernelLaw,
    sequences: ArrayLike,
    context: ArrayLike,
    heads: ArrayLike,
    kv_heads: ArrayLike,
    qk_dim: ArrayLike,
    v_dim: ArrayLike,
    kv_bytes_per_element: float = 2.0,
) -> FloatArray:
    """`attention_decode_s` under a given law."""
    sequences, context, heads, kv_heads = floats(sequences), floats(context), floats(heads), floats(kv_heads)
    width = floats(qk_dim) + floats(v_dim)
    cache_bytes = sequences * (context + 1.0) * kv_heads * width * kv_bytes_per_element
    query_bytes = sequences * heads * width * _ACTIVATION_BYTES
    # Kernels dequantise the cache and compute in 16 bits.
    rate = device.peak_flops_per_s("bfloat16") * law.compute_efficiency
    compute_s = 2.0 * sequences * context * heads * width / rate
    bandwidth = device.memory_bytes_per_s
    if law.query_efficiency > 0:
        cache_s = saturated_bytes(cache_bytes, law.saturation_bytes) / (bandwidth * law.memory_efficiency)
        query_s = query_bytes / (bandwidth * law.query_efficiency)
    else:
        cache_s, query_s = (cache_bytes + query_bytes) / (bandwidth * law.memory_efficiency), np.zeros(1)[0]
    units_s = sequences * kv_heads * law.unit_s / device.num_units
    moving_s = overlapped_s(cache_s, units_s, law.overlap) if law.unit_s > 0 else cache_s
    found: FloatArray = law.launch_s + _split_s(law, context) + np.maximum(compute_s, moving_s) + query_s
    return found


def attention_decode_s(
    device: Device,
    sequences: ArrayLike,
    context: ArrayLike,
    heads: ArrayLike,
    kv_heads: ArrayLike,
    qk_dim: ArrayLike,
    v_dim: ArrayLike,
    kv_bytes_per_element: float = 2.0,
    *,
    variant: str | None = None,
) -> FloatArray:
    """Time of the attention core for one new token of each sequence: reads ``context`` cached tokens, writes one.

    ``2 S ctx heads (qk + v)`` FLOPs; bytes are the cache of the local kv heads, the queries and the output.
    """
    law = device.kernel("attention_decode", _cache_dtype(kv_bytes_per_element), variant)
    return decode_law_s(device, law, sequences, context, heads, kv_heads, qk_dim, v_dim, kv_bytes_per_element)


def prefill_law_s(
    device: Device,
    law: KernelLaw,
    sequences: ArrayLike,
    tokens_per_sequence: ArrayLike,
    mean_context: ArrayLike,
    heads: ArrayLike,
    kv_heads: ArrayLike,
    qk_dim: ArrayLike,
    v_dim: ArrayLike,
    kv_bytes_per_element: float = 2.0,
) -> FloatArray:
    """`attention_prefill_s` under a given law."""
    sequences, heads, kv_heads = floats(sequences), floats(heads), floats(kv_heads)
    each = floats(tokens_per_sequence)
    tokens = sequences * each
    width = floats(qk_dim) + floats(v_dim)
    bandwidth = device.memory_bytes_per_s
    seen = floats(mean_context) + law.tile / 2.0
    flops = 2.0 * tokens * seen * heads * (width + 2.0 * law.softmax_width)
    compute_s = flops / (device.peak_flops_per_s("bfloat16") * law.compute_efficiency)
    query_s = tokens * heads * width * _ACTIVATION_BYTES / (bandwidth * _share(law.query_efficiency, law))
    kv_s = tokens * kv_heads * width * _ACTIVATION_BYTES / (bandwidth * _share(law.kv_efficiency, law))
    if law.kv_efficiency > 0:  # the rows are written to a paged cache as well
        kv_s = kv_s * (1.0 + kv_bytes_per_element / _ACTIVATION_BYTES)
    units_s = sequences * heads * np.ceil(each / _QUERY_TILE) * law.unit_s / device.num_units
    return law.launch_s + compute_s + query_s + kv_s + units_s


def attention_prefill_s(
    device: Device,
    sequences: ArrayLike,
    tokens_per_sequence: ArrayLike,
    mean_context: ArrayLike,
    heads: ArrayLike,
    kv_heads: ArrayLike,
    qk_dim: ArrayLike,
    v_dim: ArrayLike,
    kv_bytes_per_element: float = 2.0,
    *,
    variant: str | None = None,
) -> FloatArray:
    """Time of the attention core over whole prompts, in 16 bits.

    ``mean_context`` is the mean number of keys a token sees: half the prompt under the causal mask, at most a window.
    ``2 S n ctx heads (qk + v)`` FLOPs; bytes are queries, keys, values and the output once, and the cache written.
    """
    law = device.kernel("attention_prefill", _cache_dtype(kv_bytes_per_element), variant)
    return prefill_law_s(
        device,
        law,
        sequences,
        tokens_per_sequence,
        mean_context,
        heads,
        kv_heads,
        qk_dim,
        v_dim,
        kv_bytes_per_element,
    )


def mla_decode_law_s(
    device: Device,
    law: KernelLaw,
    sequences: ArrayLike,
    context: ArrayLike,
    heads: ArrayLike,
    latent_dim: float = 512.0,
    rope_dim: float = 64.0,
    kv_bytes_per_element: float = 2.0,
) -> FloatArray:
    """`mla_decode_s` under a given law."""
    sequences, context, heads = floats(sequences), floats(context), floats(heads)
    cache_bytes = sequences * context * (latent_dim + rope_dim) * kv_bytes_per_element
    rows = np.maximum(heads, law.tile)
    flops = 2.0 * sequences * context * rows * (2.0 * latent_dim + rope_dim)
    compute_s = flops / (device.peak_flops_per_s("bfloat16") * law.compute_efficiency)
    bandwidth = device.memory_bytes_per_s * law.memory_efficiency
    memory_s = saturated_bytes(cache_bytes, law.saturation_bytes) / bandwidth
    units_s = sequences * heads * law.unit_s / device.num_units
    found: FloatArray = law.launch_s + _split_s(law, context) + overlapped_s(compute_s, memory_s, law.overlap) + units_s
    return found


def mla_decode_s(
    device: Device,
    sequences: ArrayLike,
    context: ArrayLike,
    heads: ArrayLike,
    latent_dim: float = 512.0,
    rope_dim: float = 64.0,
    kv_bytes_per_element: float = 2.0,
    *,
    variant: str | None = None,
) -> FloatArray:
    """Time of absorbed MLA for one new token of each sequence: all local heads share one latent cache.

    ``2 S ctx heads (2 latent + rope)`` FLOPs (at least ``tile`` heads, a tensor core's tile), ``latent + rope`` cached
    elements a token. The projections that absorb k and v are products of their own.
    """
    law = device.kernel("mla_decode", _cache_dtype(kv_bytes_per_element), variant)
    return mla_decode_law_s(device, law, sequences, context, heads, latent_dim, rope_dim, kv_bytes_per_element)


def mla_prefill_s(
    device: Device,
    sequences: ArrayLike,
    tokens_per_sequence: ArrayLike,
    mean_context: ArrayLike,
    heads: ArrayLike,
    qk_dim: float = 192.0,
    v_dim: float = 128.0,
    kv_bytes_per_element: float = 2.0,
    *,
    variant: str | None = None,
) -> FloatArray:
    """Time of MLA's core over whole prompts, keys and values expanded to every head: prefill attention with kv = q."""
    law = device.kernel("mla_prefill", _cache_dtype(kv_bytes_per_element), variant)
    return prefill_law_s(
        device, law, sequences, tokens_per_sequence, mean_context, heads, heads, qk_dim, v_dim, kv_bytes_per_element
    )
