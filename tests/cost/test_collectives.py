"""Hand-computed on links with round numbers: 100 GB/s and 2 us inside a node, 10 GB/s and 20 us between nodes."""

from dataclasses import replace
from math import sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoshard.cost import collective_s
from autoshard.hardware import COLLECTIVE_KINDS, CollectiveKind, CollectiveLaw, Link, parse_cluster

INTRA = Link(bytes_per_s=100e9, latency_s=2e-6)
INTER = Link(bytes_per_s=10e9, latency_s=20e-6)
kinds = st.sampled_from(COLLECTIVE_KINDS)
groups = st.sampled_from([(2, 1), (2, 2), (4, 4), (8, 8), (16, 8), (12, 4), (64, 8), (8, 1)])


def seconds(kind: CollectiveKind, num_bytes: float, size: int, local: int) -> float:
    return float(collective_s(kind, num_bytes, size, local, INTRA, INTER))


@pytest.mark.parametrize(
    ("kind", "expected_us"),
    [
        ("all_reduce", 2 + 15),  # 2 x 3/4 x 1e6 = 1.5e6 bytes over 100 GB/s
        ("all_gather", 2 + 7.5),  # 3/4 x 1e6
        ("reduce_scatter", 2 + 7.5),
        ("all_to_all", 2 + 7.5),
    ],
)
def test_inside_a_node(kind: CollectiveKind, expected_us: float) -> None:
    assert seconds(kind, 1e6, 4, 4) == pytest.approx(expected_us * 1e-6)


@pytest.mark.parametrize(
    ("kind", "expected_us"),
    [
        # 8 ranks, 4 to a node. In the node 3/4 x 1e6 / 100 GB/s = 7.5 us + 2; a part is 2.5e5 bytes.
        # All-reduce of it over 2 nodes moves 2 x 1/2 x 2.5e5 / 10 GB/s = 25 us + 20.
        ("all_reduce", 9.5 + 45 + 9.5),
        # The part across 2 nodes moves 1/2 x 2.5e5 = 1.25e5 bytes: 12.5 us + 20.
        ("all_gather", 9.5 + 32.5),
        ("reduce_scatter", 9.5 + 32.5),
        # 4/8 of 1e6 leave the node: 5e5 / 10 GB/s = 50 us + 20; 3/8 stay (3.75 us + 2) meanwhile.
        ("all_to_all", 70.0),
    ],
)
def test_across_nodes(kind: CollectiveKind, expected_us: float) -> None:
    assert seconds(kind, 1e6, 8, 4) == pytest.approx(expected_us * 1e-6)


def test_send_recv_takes_the_link_between_its_ranks() -> None:
    assert seconds("send_recv", 1e6, 2, 2) == pytest.approx(12e-6)  # 2 + 10
    assert seconds("send_recv", 1e6, 2, 1) == pytest.approx(120e-6)  # 20 + 100


def test_one_rank_a_node_uses_the_network_only() -> None:
    assert seconds("all_reduce", 1e6, 4, 1) == pytest.approx(170e-6)  # 20 + 2 x 3/4 x 1e6 / 10 GB/s


def test_saturation_and_latency_by_rank() -> None:
    law = CollectiveLaw(latency_s=1e-6, latency_per_rank_s=0.5e-6, efficiency=0.8, saturation_bytes=4e6)
    link = Link(bytes_per_s=100e9, laws={"all_gather": law})
    # 4 ranks: 1 + 3 x 0.5 us; W = 0.75 x 4e6 = 3e6 over 80 GB/s = 37.5 us, times 1 + sqrt(4/3).
    expected = 2.5e-6 + 37.5e-6 * (1 + sqrt(4 / 3))
    assert float(collective_s("all_gather", 4e6, 4, 4, link, INTER)) == pytest.approx(expected)


@given(kind=kinds, num_bytes=st.floats(0, 1e12))
def test_a_group_of_one_costs_nothing(kind: CollectiveKind, num_bytes: float) -> None:
    assert seconds(kind, num_bytes, 1, 1) == 0.0


@given(kind=kinds, group=groups, num_bytes=st.floats(1, 1e10), more=st.floats(1.001, 100))
def test_strictly_more_for_more_bytes(
    kind: CollectiveKind, group: tuple[int, int], num_bytes: float, more: float
) -> None:
    cluster = parse_cluster("H100x64")
    less = collective_s(kind, num_bytes, *group, cluster.intra, cluster.inter)
    assert collective_s(kind, num_bytes * more, *group, cluster.intra, cluster.inter) > less


@given(kind=kinds, group=groups, num_bytes=st.floats(0, 1e10), factor=st.floats(1, 100))
def test_more_bandwidth_is_never_slower(
    kind: CollectiveKind, group: tuple[int, int], num_bytes: float, factor: float
) -> None:
    c = parse_cluster("H100x64")
    now = collective_s(kind, num_bytes, *group, c.intra, c.inter)
    intra = replace(c.intra, bytes_per_s=c.intra.bytes_per_s * factor)
    inter = replace(c.inter, bytes_per_s=c.inter.bytes_per_s * factor)
    assert collective_s(kind, num_bytes, *group, intra, c.inter) <= now
    assert collective_s(kind, num_bytes, *group, c.intra, inter) <= now


@pytest.mark.parametrize("kind", COLLECTIVE_KINDS)
def test_batched_equals_scalar(kind: CollectiveKind) -> None:
    num_bytes, size, local = np.array([[1e3], [1e7]]), np.array([1, 2, 8, 16]), np.array([1, 2, 8, 8])
    expected = [[seconds(kind, b, s, n) for s, n in zip(size, local, strict=True)] for b in num_bytes[:, 0]]
    assert collective_s(kind, num_bytes, size, local, INTRA, INTER).tolist() == expected
