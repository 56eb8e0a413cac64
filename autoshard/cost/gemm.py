r"""Time of dense and grouped matrix products.

The output is cut into tiles of ``a x b``; a compute unit works on one at a time, so ``ceil(tiles / units)`` waves run.
A tile costs ``2 k (a b + h (a + b))`` FLOPs' worth of time, ``h`` being what loading a row or column costs. Loads and
arithmetic overlap as `autoshard.cost.roofline` says; the best tile of a few is taken, as libraries do:

.. math:: t = t_0 + q + \min_{a,b} \left(\frac{\lceil n / N_{SM} \rceil N_{SM}\, 2k(ab + h(a + b))}{P e_c}
   \oplus_p \frac{\mathrm{bytes}}{B e_m} + \lambda k\right)

``q`` reads activations in 16 bits and writes them quantised (3 bytes an element) where weights are quantised, kernels
that last much longer than a millisecond slow down by ``throttle``. A law without ``tile_edge`` is the plain roofline.
All sizes are LOCAL to one device. Weights and the activations that enter have the dtype's size, outputs 16 bits.
Neglected: L2 reuse, split-k, and kernels that an autotuner picked badly (a fifth of `moe_h100`'s trtllm rows).
"""

import numpy as np
from numpy.typing import ArrayLike

from autoshard.cost.arrays import FloatArray, floats
from autoshard.cost.memory import memory_op_s
from autoshard.cost.roofline import overlapped_s
from autoshard.hardware import Device, KernelLaw
from autoshard.units import MS, dtype_bytes

ACTIVATION_BYTES = 2.0
"""Outputs are bfloat16 whatever the weights are."""
_TILES = ((64, 64), (64, 128), (128, 128), (64, 256), (128, 256))
_GROUPED_TILES = ((16, 128), (64, 128), (128, 128))
_QUANTISE_BYTES = 3.0  # read in 16 bits, written in 8


def _waves(device: Device, tiles: FloatArray) -> FloatArray:
    """Tiles, rounded up to whole waves over the device."""
    found: FloatArray = np.ceil(tiles / device.num_units) * device.num_units
    return found


def _tile_flops(law: KernelLaw, rows: int, columns: int, k: FloatArray) -> FloatArray:
    return 2.0 * k * (rows * columns + (law.tile_edge or 0.0) * (rows + columns))


def _throttled_s(law: KernelLaw, seconds: FloatArray) -> FloatArray:
    """Kernels much longer than a millisecond run at a lower clock."""
    return seconds if law.throttle == 0 else seconds * (1.0 + law.throttle * seconds / (seconds + MS))


def gemm_law_s(
    device: Device,
    law: KernelLaw,
    m: ArrayLike,
    k: ArrayLike,
    n: ArrayLike,
    dtype: str = "bfloat16",
    weight_bytes: float | None = None,
) -> FloatArray:
    """`gemm_s` under a given law; ``weight_bytes`` an element where weights are narrower than the arithmetic."""
    m, k, n = floats(m), floats(k), floats(n)
    entering = dtype_bytes(dtype)
    stored = entering if weight_bytes is None else weight_bytes
    num_bytes = k * n * stored + m * k * entering + m * n * max(ACTIVATION_BYTES, entering)
    rate = device.peak_flops_per_s(dtype) * law.compute_efficiency
    memory_s = num_bytes / (device.memory_bytes_per_s * law.memory_efficiency)
    if law.tile_edge is None:
        best = overlapped_s(2.0 * m * k * n / rate, memory_s, law.overlap)
    else:
        best = np.full(np.broadcast(m, k, n).shape, np.inf)
        for rows, columns in _TILES:
            tiles = np.ceil(m / rows) * np.ceil(n / columns)
            compute_s = _waves(device, tiles) * _tile_flops(law, rows, columns, k) / rate
            best = np.minimum(best, overlapped_s(compute_s, memory_s, law.overlap))
    found = law.launch_s + _throttled_s(law, best + law.k_latency_s * k)
    if law.quantise_efficiency > 0:
        found = found + m * k * _QUANTISE_BYTES / (device.memory_bytes_per_s * law.quantise_efficiency)
    return found


def gemm_s(
    device: Device,
    m: ArrayLike,
    k: ArrayLike,
    n: ArrayLike,
    dtype: str = "bfloat16",
    *,
    variant: str | None = None,
) -> FloatArray:
    """Time of an ``(m, k) x (k, n)`` product, ``m`` being tokens: ``2 m k n`` FLOPs; weights, input and output once.

    ``variant`` picks one engine's kernel (``vllm/fp8``), where the device file has it.
    """
    return gemm_law_s(device, device.kernel("gemm", dtype, variant), m, k, n, dtype)


def grouped_law_s(
    device: Device,
    law: KernelLaw,
    pairs: ArrayLike,
    experts_local: ArrayLike,
    experts_touched: ArrayLike,
    k: ArrayLike,
    n: ArrayLike,
    dtype: str = "bfloat16",
    weight_bytes: float | None = None,
) -> FloatArray:
    """`grouped_gemm_s` under a given law."""
    pairs, local, k, n = floats(pairs), floats(experts_local), floats(k), floats(n)
    read = np.minimum(floats(experts_touched), local)
    entering = dtype_bytes(dtype)
    stored = entering if weight_bytes is None else weight_bytes
    num_bytes = read * k * n * stored + pairs * k * entering + pairs * n * max(ACTIVATION_BYTES, entering)
    rate = device.peak_flops_per_s(dtype) * law.compute_efficiency
    memory_s = num_bytes / (device.memory_bytes_per_s * law.memory_efficiency)
    if law.tile_edge is None:
        best = overlapped_s(2.0 * pairs * k * n / rate, memory_s, law.overlap)
    else:
        best = np.full(np.broadcast(pairs, read, k, n).shape, np.inf)
        for rows, columns in _GROUPED_TILES:
            # Every touched expert has a tile that is half empty on average.
            tiles = np.maximum(read, pairs / rows + read / 2.0) * np.ceil(n / columns)
            compute_s = _waves(device, tiles) * _tile_flops(law, rows, columns, k) / rate
            best = np.minimum(best, overlapped_s(compute_s, memory_s, law.overlap))
    found = law.launch_s + law.expert_s * local + best
    if law.rows_efficiency > 0:
        rows_bytes = pairs * (k + n) * ACTIVATION_BYTES
        found = found + rows_bytes / (device.memory_bytes_per_s * law.rows_efficiency)
    return found


def grouped_gemm_s(
    device: Device,
    pairs: ArrayLike,
    experts_local: ArrayLike,
    experts_touched: ArrayLike,
    k: ArrayLike,
    n: ArrayLike,
    dtype: str = "bfloat16",
    *,
    variant: str | None = None,
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
        variant: One engine's kernel, where the device file has it.
    """
    law = device.kernel("grouped_gemm", dtype, variant)
    return grouped_law_s(device, law, pairs, experts_local, experts_touched, k, n, dtype)


def fused_experts_law_s(
    device: Device,
    law: KernelLaw,
    pairs: ArrayLike,
    group_pairs: ArrayLike,
    experts_local: ArrayLike,
    experts_touched: ArrayLike,
    hidden: ArrayLike,
    width: ArrayLike,
    dtype: str = "bfloat16",
    weight_bytes: float | None = None,
) -> FloatArray:
    """A whole routed layer: gate and up in one product, activation, down, and the rows moved about.

    Exactly the sum of its two `grouped_law_s`, a `memory_op_s` of three rows of ``width``, and, where the law has
    ``all_rows_efficiency``, a read and write of the hidden rows of all ``group_pairs`` of the expert-parallel group.
    """
    pairs, hidden, width = floats(pairs), floats(hidden), floats(width)
    up = grouped_law_s(device, law, pairs, experts_local, experts_touched, hidden, 2 * width, dtype, weight_bytes)
    down = grouped_law_s(device, law, pairs, experts_local, experts_touched, width, hidden, dtype, weight_bytes)
    found = up + memory_op_s(device, 3.0 * pairs * width * ACTIVATION_BYTES) + down
    if law.all_rows_efficiency > 0:
        rows_bytes = 2.0 * floats(group_pairs) * hidden * ACTIVATION_BYTES
        found = found + rows_bytes / (device.memory_bytes_per_s * law.all_rows_efficiency)
    return found
