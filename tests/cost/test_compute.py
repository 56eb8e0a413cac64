"""Hand-computed times on a device with round numbers: 100 TFLOP/s, 1 TB/s, shares of 1/2, floors of 1-5 us."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoshard.cost import attention_decode_s, attention_prefill_s, gemm_s, grouped_gemm_s, memory_op_s
from autoshard.errors import InvalidInputError
from autoshard.hardware import KERNEL_KINDS, Device, KernelLaw, load_device

TOY = Device(
    name="Toy",
    flops_per_s={"bfloat16": 100e12, "float8_e4m3fn": 200e12},
    memory_bytes=16e9,
    memory_bytes_per_s=1e12,
    kernels={
        kind: {"bfloat16": KernelLaw(compute_efficiency=0.5, memory_efficiency=0.5, launch_s=(i + 1) * 1e-6)}
        for i, kind in enumerate(KERNEL_KINDS)  # gemm 1, grouped 2, decode 3, prefill 4, memory 5 us
    },
)


def test_gemm_bound_by_memory() -> None:
    # m=10, k=1000, n=2000: bytes 2 (2e6 + 1e4 + 2e4) = 4.06e6 over 0.5e12 = 8.12 us;
    # flops 4e7 over 50e12 = 0.8 us. 1 + 8.12.
    assert gemm_s(TOY, 10, 1000, 2000) == pytest.approx(9.12e-6)


def test_gemm_bound_by_compute() -> None:
    # 4096^3: flops 2 x 6.8719e10 = 1.37439e11 over 50e12 = 2748.78 us; bytes 3 x 2 x 1.678e7 = 1.007e8: 201 us.
    assert gemm_s(TOY, 4096, 4096, 4096) == pytest.approx(2749.78e-6, rel=1e-5)


def test_float8_halves_weights_and_inputs() -> None:
    # bytes 2e6 + 1e4 + 2 x 2e4 = 2.05e6 over 0.5e12 = 4.1 us.
    assert gemm_s(TOY, 10, 1000, 2000, "float8_e4m3fn") == pytest.approx(5.1e-6)


def test_dtype_the_device_lacks_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="Toy does not compute in int8"):
        gemm_s(TOY, 1, 1, 1, "int8")


def test_grouped_gemm_reads_only_touched_experts() -> None:
    # 4 of 8 experts of 1000 x 500, 6 pairs: bytes 2 (4 x 5e5 + 6e3 + 3e3) = 4.018e6 over 0.5e12 = 8.036 us.
    assert grouped_gemm_s(TOY, 6, 8, 4, 1000, 500) == pytest.approx(10.036e-6)
    # never more than the rank holds
    assert grouped_gemm_s(TOY, 6, 4, 99, 1000, 500) == pytest.approx(10.036e-6)


def test_decode_attention_reads_the_cache() -> None:
    # 2 sequences, 999 cached + 1 new, 4 kv heads, 64 + 64 wide: cache 2 x 1000 x 4 x 128 x 2 = 2.048e6 bytes;
    # q and out 2 x 8 x 128 x 2 = 4096. 2.052096e6 over 0.5e12 = 4.104192 us.
    assert attention_decode_s(TOY, 2, 999, 8, 4, 64, 64) == pytest.approx(7.104192e-6)
    # a cache of one byte: 1.024e6 + 4096
    assert attention_decode_s(TOY, 2, 999, 8, 4, 64, 64, 1.0) == pytest.approx(3e-6 + 2.056192e-6)


def test_prefill_attention_adds_compute_and_memory() -> None:
    # 1 prompt of 1000, mean context 500, 8 heads, 2 kv heads, 64 + 64: flops 2 x 1000 x 500 x 8 x 128 = 1.024e9 over
    # 50e12 = 20.48 us; bytes 1000 x 10 x 128 x 2 = 2.56e6 over 0.5e12 = 5.12 us.
    assert attention_prefill_s(TOY, 1, 1000, 500, 8, 2, 64, 64) == pytest.approx((4 + 20.48 + 5.12) * 1e-6)


def test_memory_op() -> None:
    assert memory_op_s(TOY, 1e6) == pytest.approx((5 + 2) * 1e-6)


def test_batched_equals_scalar() -> None:
    m, n = np.array([1, 64, 4096])[:, None], np.array([512, 8192])
    batch = gemm_s(TOY, m, 1024, n)
    assert batch.shape == (3, 2)
    assert [[float(gemm_s(TOY, a, 1024, b)) for b in n] for a in m[:, 0]] == batch.tolist()
    context = np.array([1, 100, 10000])
    assert attention_decode_s(TOY, 4, context, 8, 8, 64, 64).tolist() == [
        float(attention_decode_s(TOY, 4, c, 8, 8, 64, 64)) for c in context
    ]


sizes = st.integers(1, 16384)


@given(m=sizes, k=sizes, n=sizes, more=st.integers(1, 1000))
def test_more_work_is_never_faster(m: int, k: int, n: int, more: int) -> None:
    device = load_device("H100")
    assert gemm_s(device, m + more, k, n) >= gemm_s(device, m, k, n)
    assert gemm_s(device, m, k, n + more) >= gemm_s(device, m, k, n)
    assert grouped_gemm_s(device, m, 8, 8, k, n) >= grouped_gemm_s(device, m, 8, 4, k, n)


@given(m=sizes, k=sizes, n=sizes, factor=st.floats(1, 10))
def test_a_faster_device_is_never_slower(m: int, k: int, n: int, factor: float) -> None:
    device = load_device("H100")
    wider = replace(device, memory_bytes_per_s=device.memory_bytes_per_s * factor)
    stronger = replace(device, flops_per_s={d: v * factor for d, v in device.flops_per_s.items()})
    for better in (wider, stronger):
        assert gemm_s(better, m, k, n) <= gemm_s(device, m, k, n)
        assert attention_decode_s(better, m, k, 32, 8, 128, 128) <= attention_decode_s(device, m, k, 32, 8, 128, 128)
