"""Hand-computed on a device with round numbers: 100 TFLOP/s, 1 TB/s, 10 compute units."""

from dataclasses import replace
from math import sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoshard.cost import (
    collective_law_s,
    collective_s,
    decode_law_s,
    dispatch_s,
    fused_experts_law_s,
    gemm_law_s,
    gemm_s,
    grouped_law_s,
    memory_op_s,
    mla_decode_law_s,
    mla_decode_s,
    mla_prefill_s,
    power_law_load,
    prefill_law_s,
    scan_s,
)
from autoshard.errors import InvalidInputError
from autoshard.hardware import (
    KERNEL_KINDS,
    CollectiveLaw,
    Device,
    DispatchLaw,
    KernelLaw,
    Link,
    known_devices,
    load_device,
    parse_cluster,
)

PLAIN = KernelLaw(compute_efficiency=0.5, memory_efficiency=0.5, launch_s=1e-6)
TOY = Device(
    name="Toy",
    flops_per_s={"bfloat16": 100e12},
    memory_bytes=16e9,
    memory_bytes_per_s=1e12,
    kernels={kind: {"bfloat16": PLAIN} for kind in KERNEL_KINDS},
    num_units=10,
)


def test_tiles_fill_whole_waves() -> None:
    law = replace(PLAIN, tile_edge=0.0)
    # 11 tiles of 64 x 64 (m = 704, n = 64) make 2 waves of 10 tiles; larger tiles are no better: 6 of 128 x 128 make 1
    # wave of 10 x 16384, 11 of 64 x 128 two of 8192 each. Best: min(20 x 4096, 20 x 8192, 10 x 16384) = 81920 a k.
    # 2 x 1e5 x 81920 / 50e12 = 327.68 us; bytes 2 (64e5 + 704e5 + 45056) = 1.5369e8 over 0.5e12 = 307.4 us.
    assert gemm_law_s(TOY, law, 704, 100_000, 64) == pytest.approx(1e-6 + 327.68e-6)


def test_edges_latency_quantisation_and_throttle() -> None:
    base = replace(PLAIN, memory_efficiency=1.0)
    plain = float(gemm_law_s(TOY, replace(base, tile_edge=0.0), 64, 1000, 64))
    # One wave of 10 tiles of 64 x 64, edge 16: 2 x 1000 x 10 x (4096 + 16 x 128) / 50e12 = 2.4576 us, not 1.6384.
    edged = float(gemm_law_s(TOY, replace(base, tile_edge=16.0), 64, 1000, 64))
    assert (plain, edged) == (pytest.approx(2.6384e-6), pytest.approx(3.4576e-6))
    slow = replace(base, tile_edge=0.0, k_latency_s=1e-9, quantise_efficiency=0.5)
    # + 1000 ns of latency + 64 x 1000 x 3 bytes over 0.5e12 = 0.384 us.
    assert gemm_law_s(TOY, slow, 64, 1000, 64) == pytest.approx(plain + 1e-6 + 0.384e-6)
    # 1.6384 us of 1001.6384 us: 0.1 x that share more.
    hot = replace(base, tile_edge=0.0, throttle=0.1)
    assert gemm_law_s(TOY, hot, 64, 1000, 64) == pytest.approx(1e-6 + 1.6384e-6 * (1 + 0.1 * 1.6384 / 1001.6384))


def test_overlap_one_is_a_sum() -> None:
    # 4 us of arithmetic (1e8 x 2 / 50e12) and 2 (1e4 + 2 x 1e6) = 4.02e6 bytes, 8.04 us.
    assert gemm_law_s(TOY, replace(PLAIN, overlap=1.0), 100, 10_000, 100) == pytest.approx(1e-6 + 4e-6 + 8.04e-6)
    assert gemm_law_s(TOY, PLAIN, 100, 10_000, 100) == pytest.approx(1e-6 + 8.04e-6)


def test_a_fused_layer_is_the_sum_of_its_parts() -> None:
    law = replace(PLAIN, expert_s=1e-8, rows_efficiency=0.5, all_rows_efficiency=0.25, tile_edge=4.0)
    up = grouped_law_s(TOY, law, 64, 8, 6, 512, 2 * 256)
    down = grouped_law_s(TOY, law, 64, 8, 6, 256, 512)
    moved = 2 * 128 * 512 * 2 / 0.25e12  # every row of the group, read and written
    whole = fused_experts_law_s(TOY, law, 64, 128, 8, 6, 512, 256)
    assert whole == pytest.approx(float(up + memory_op_s(TOY, 3 * 64 * 256 * 2) + down) + moved)


def test_decode_units_queries_and_split() -> None:
    law = replace(PLAIN, unit_s=1e-6, overlap=1.0, query_efficiency=0.25, split_s=4e-6, split_tokens=999.0)
    # 20 units on 10 compute units: 2 us. Cache 10 x 1000 x 2 x 128 x 2 = 5.12e6 bytes: 10.24 us. Queries and outputs
    # 10 x 8 x 128 x 2 = 20480 bytes over 0.25e12 = 0.08192 us. Half of the 4 us, as 999 tokens are cached.
    expected = (1 + 2 + 10.24 + 2 + 0.08192) * 1e-6
    assert decode_law_s(TOY, law, 10, 999, 8, 2, 64, 64) == pytest.approx(expected)


def test_prefill_tiles_and_softmax() -> None:
    law = replace(PLAIN, tile=100.0, softmax_width=64.0, query_efficiency=0.5, kv_efficiency=0.25, unit_s=1e-6)
    # flops 2 x 1000 x (500 + 50) x 8 x (128 + 128) = 2.2528e9: 45.056 us; queries 1000 x 8 x 128 x 2 = 2.048e6: 4.096;
    # keys and values 1000 x 2 x 128 x 2 = 5.12e5 over 0.25e12 = 2.048, written too: 4.096; 8 x 8 tiles / 10: 6.4 us.
    expected = (1 + 45.056 + 4.096 + 4.096 + 6.4) * 1e-6
    assert prefill_law_s(TOY, law, 1, 1000, 500, 8, 2, 64, 64) == pytest.approx(expected)


def test_mla_shares_one_latent_and_fills_a_tile_of_heads() -> None:
    law = replace(PLAIN, tile=16.0)
    # 2 sequences x 1000 x 576 x 2 = 2.304e6 bytes: 4.608 us; flops 2 x 2000 x 16 x 1088 = 6.96e7: 1.4 us.
    assert mla_decode_law_s(TOY, law, 2, 1000, 4) == pytest.approx(5.608e-6)
    # 128 heads: 2 x 2000 x 128 x 1088 / 50e12 = 11.141 us.
    assert mla_decode_law_s(TOY, law, 2, 1000, 128) == pytest.approx(1e-6 + 5.57056e8 / 50e12)


def test_scan_moves_states_and_rows() -> None:
    # Decode: 2 x 4 x 8 x 64 x 64 x 4 = 1.048576e6 bytes of state, 4 x 8 x 2 x 128 x 2 = 16384 of rows over 0.5e12.
    assert scan_s(TOY, 4, 1, 8, 64, 64) == pytest.approx(1e-6 + 1.06496e6 / 0.5e12)


def test_collective_constants_are_interpolated_by_ranks() -> None:
    at = [(n, CollectiveLaw(latency_s=t * 1e-6, efficiency=e)) for n, t, e in ((2, 4.0, 0.5), (8, 10.0, 0.8))]
    law = CollectiveLaw(latency_s=0.0, by_ranks=tuple(at))
    # 4 ranks lie half way from 2 to 8 in the logarithm: 7 us, 65 % of 100 GB/s; 16 ranks: 13 us, 80 %.
    assert collective_law_s(law, 100e9, 6.5e6, 4) == pytest.approx(7e-6 + 100e-6)
    assert collective_law_s(law, 100e9, 8e6, 16) == pytest.approx(13e-6 + 100e-6)
    assert collective_law_s(law, 100e9, 0.0, 4) == 0.0 and collective_law_s(law, 100e9, 1e6, 1) == 0.0


def test_a_step_for_large_messages() -> None:
    law = CollectiveLaw(latency_s=1e-6, step_s=4e-6, step_bytes=1e6, saturation_bytes=1e6)
    # 1e6 bytes: half of the step, 10 us twice over 100 GB/s.
    assert collective_law_s(law, 100e9, 1e6, 2) == pytest.approx(1e-6 + 2e-6 + 20e-6)


def test_engine_all_reduce_and_eager_launch() -> None:
    own = CollectiveLaw(latency_s=1e-6, efficiency=0.5)
    link = Link(bytes_per_s=100e9, latency_s=10e-6, eager_latency_s=18e-6, engine_laws={"mine": own})
    small, large = 1e5, 1e7
    # 2 ranks move the buffer once: 10 + 1 us by the library; 1 + 2 us by the engine; 1e7: 110 against 201 us.
    assert collective_s("all_reduce", small, 2, 2, link, link, engine="mine") == pytest.approx(3e-6)
    assert collective_s("all_reduce", large, 2, 2, link, link, engine="mine") == pytest.approx(110e-6)
    assert collective_s("all_reduce", small, 2, 2, link, link, engine="other") == pytest.approx(11e-6)
    assert collective_s("all_reduce", small, 2, 2, link, link, eager=True) == pytest.approx(29e-6)
    assert collective_s("all_reduce", small, 1, 1, link, link, eager=True) == 0.0


def test_dispatch_by_hand() -> None:
    intra, inter = Link(bytes_per_s=100e9), Link(bytes_per_s=10e9)
    law = DispatchLaw(latency_s=10e-6, node_latency_s=5e-6)
    # 100 tokens of 1000 bytes, 4 experts, 16 ranks on 2 nodes: 2 rows leave (20 us), 2 stay (2 us): (20^4 + 2^4)^(1/4).
    expected = 15e-6 + (20**4 + 2**4) ** 0.25 * 1e-6
    assert dispatch_s(law, 100, 1000, 4, 16, 2, intra, inter) == pytest.approx(expected)
    # Sent once a node: 1 - (1/2)^4 = 15/16 of a row leaves; to ranks 15 (1 - (15/16)^4) = 3.4127, and 15/16 forwarded.
    once = replace(law, deduplicated=True, half_rate_units=10.0)
    local, remote = (15 * (1 - (15 / 16) ** 4) + 15 / 16) * 2, 9.375
    expected = 15e-6 + (local**4 + remote**4) ** 0.25 * 1e-6
    assert dispatch_s(once, 100, 1000, 4, 16, 2, intra, inter, 10) == pytest.approx(expected)
    assert dispatch_s(law, 100, 1000, 4, 1, 1, intra, inter) == 0.0


def test_power_law_loads_are_uneven_and_bounded() -> None:
    pairs, touched = power_law_load(1024, 64, 4, 8, 1.2)
    assert 1024 * 4 / 8 < pairs <= 1024 * 4
    assert touched <= 8
    assert power_law_load(1024, 64, 4, 8, 1.2) == (pairs, touched)
    assert power_law_load(1, 64, 4, 8, 1.2)[0] <= 4


@given(
    name=st.sampled_from(known_devices()),
    m=st.integers(1, 40000),
    k=st.integers(1, 20000),
    n=st.integers(1, 20000),
    factor=st.floats(1, 8),
)
def test_more_bandwidth_or_arithmetic_is_never_slower(name: str, m: int, k: int, n: int, factor: float) -> None:
    device = load_device(name)
    wider = replace(device, memory_bytes_per_s=device.memory_bytes_per_s * factor)
    stronger = replace(device, flops_per_s={d: v * factor for d, v in device.flops_per_s.items()})
    larger = replace(device, memory_bytes=device.memory_bytes * factor)
    heads = 1 + n % 128

    def times(on: Device) -> list[float]:
        law = on.kernel("grouped_gemm", "bfloat16", "trtllm/bfloat16")
        return [
            float(gemm_s(on, m, k, n, variant="vllm/fp8")),
            float(fused_experts_law_s(on, law, m, 2 * m, 64, min(64, m), k, n)),
            float(mla_decode_s(on, 1 + m % 512, k, heads)),
            float(mla_prefill_s(on, 1 + m % 16, k, k / 2, heads)),
            float(scan_s(on, m, 1, heads, 64, 64)),
        ]

    before = times(device)
    for better in (wider, stronger, larger):
        assert all(a <= b * (1 + 1e-12) for a, b in zip(times(better), before, strict=True))


@given(
    num_bytes=st.floats(1, 1e9),
    less=st.floats(0.001, 1),
    size=st.sampled_from([2, 4, 8, 16]),
    factor=st.floats(1, 8),
)
def test_fewer_bytes_and_faster_links_are_never_slower(num_bytes: float, less: float, size: int, factor: float) -> None:
    cluster = parse_cluster("H100x64")
    faster = replace(cluster.intra, bytes_per_s=cluster.intra.bytes_per_s * factor)
    for kind in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
        args = (size, min(size, 8))
        whole = collective_s(kind, num_bytes, *args, cluster.intra, cluster.inter, engine="vllm_graph")
        part = collective_s(kind, num_bytes * less, *args, cluster.intra, cluster.inter, engine="vllm_graph")
        quick = collective_s(kind, num_bytes, *args, faster, cluster.inter, engine="vllm_graph")
        assert part <= whole * (1 + 1e-12) and quick <= whole * (1 + 1e-12)


@given(touched=st.integers(1, 64), more=st.integers(0, 64), pairs=st.integers(64, 10**5))
def test_more_experts_touched_is_never_faster(touched: int, more: int, pairs: int) -> None:
    device = load_device("H100")
    law = device.kernel("grouped_gemm", "bfloat16", "vllm/bfloat16")
    few, many = (grouped_law_s(device, law, pairs, 128, e, 2048, 1024) for e in (touched, touched + more))
    assert few <= many * (1 + 1e-12)


def test_batched_equals_scalar() -> None:
    device = load_device("H100")
    law = device.kernel("gemm", "bfloat16")
    m = np.array([1, 100, 5000])
    assert gemm_law_s(device, law, m, 512, 256).tolist() == [float(gemm_law_s(device, law, v, 512, 256)) for v in m]


@pytest.mark.parametrize(
    "wrong", [{"overlap": 0.5}, {"tile_edge": -1.0}, {"expert_s": -1e-6}, {"saturation_bytes": float("inf")}]
)
def test_wrong_constants_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidInputError):
        replace(PLAIN, **wrong)


def test_square_root_law_halves_the_rate_at_saturation() -> None:
    law = replace(PLAIN, saturation_bytes=1e6, query_efficiency=0.5)
    # Cache 1 x 1000 x 1 x 128 x 2 = 2.56e5 bytes count as 2.56e5 (1 + sqrt(1e6 / 2.56e5)).
    expected = 1e-6 + 2.56e5 * (1 + sqrt(1e6 / 2.56e5)) / 0.5e12 + 256 / 0.5e12
    assert decode_law_s(TOY, law, 1, 999, 1, 1, 64, 64) == pytest.approx(expected)
