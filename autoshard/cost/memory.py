"""Time of kernels that compute next to nothing: one pass over memory, and scans of a recurrent state.

Neither was in the measured tables: shares and floors are assumed (device files say so).
"""

import numpy as np
from numpy.typing import ArrayLike

from autoshard.cost.arrays import FloatArray, floats
from autoshard.hardware import Device

_ACTIVATION_BYTES = 2.0
_STATE_BYTES = 4.0  # recurrent states are kept in float32


def memory_op_s(device: Device, num_bytes: ArrayLike) -> FloatArray:
    """Time of a pass over memory that computes next to nothing: norm, add, activation, embedding look-up."""
    law = device.kernel("memory")
    return law.launch_s + floats(num_bytes) / (device.memory_bytes_per_s * law.memory_efficiency)


def scan_s(
    device: Device,
    sequences: ArrayLike,
    tokens_per_sequence: ArrayLike,
    heads: ArrayLike,
    key_dim: ArrayLike,
    value_dim: ArrayLike,
) -> FloatArray:
    """Time of a linear-attention, gated-delta or state-space scan on the local ``heads``; from bytes, unmeasured.

    Every sequence reads and writes its state ``heads x key_dim x value_dim`` in float32 once a chunk of 64 tokens (once
    a step in decode), every token its queries, keys, values and outputs in 16 bits. Arithmetic is that of the chunked
    form, ``4 key_dim value_dim`` FLOPs a token and head, and overlaps.
    """
    sequences, tokens, heads = floats(sequences), floats(tokens_per_sequence), floats(heads)
    key, value = floats(key_dim), floats(value_dim)
    law = device.kernel("scan")
    chunks = np.ceil(tokens / 64.0)
    state_bytes = 2.0 * sequences * chunks * heads * key * value * _STATE_BYTES
    row_bytes = sequences * tokens * heads * 2.0 * (key + value) * _ACTIVATION_BYTES
    flops = 4.0 * sequences * tokens * heads * key * value
    memory_s = (state_bytes + row_bytes) / (device.memory_bytes_per_s * law.memory_efficiency)
    return law.launch_s + np.maximum(memory_s, flops / (device.peak_flops_per_s("bfloat16") * law.compute_efficiency))
