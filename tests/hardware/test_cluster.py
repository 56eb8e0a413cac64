import pytest

from autoshard.errors import InvalidInputError
from autoshard.hardware import Cluster, named_cluster, parse_cluster
from autoshard.units import GB


@pytest.mark.parametrize("count", [1, 3, 8, 24, 64, 512])
def test_any_count_is_a_cluster(count: int) -> None:
    cluster = parse_cluster(f"H100x{count}")
    assert (cluster.name, cluster.num_devices, cluster.devices_per_node) == (f"H100x{count}", count, 8)
    assert cluster.num_nodes == (count + 7) // 8


def test_names_are_read_in_any_case() -> None:
    assert parse_cluster("h200X16") == parse_cluster("H200x16")


def test_clusters_are_hashable_and_equal_by_value() -> None:
    assert len({parse_cluster("H100x64"), parse_cluster("H100x64"), parse_cluster("H100x8")}) == 2


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("H10x8", ["unknown device 'H10'", "A100, B200, GB200, H100, H20, H200, L40S, MI300X", "did you mean H100x8?"]),
        ("H100x0", ["has 0 devices", "at least 1", "H100x8"]),
        ("H100", ["<DEVICE>x<COUNT>", "A100, B200, GB200, H100, H20, H200, L40S, MI300X"]),
        ("H100x-4", ["<DEVICE>x<COUNT>"]),
        ("", ["<DEVICE>x<COUNT>"]),
        ("missing.yaml", ["cannot read cluster file missing.yaml"]),
    ],
)
def test_wrong_names_give_one_line(text: str, parts: list[str]) -> None:
    with pytest.raises(InvalidInputError) as error:
        parse_cluster(text)
    line = str(error.value)
    assert "\n" not in line
    assert all(part in line for part in parts), line


def test_named_cluster_is_for_imports() -> None:
    assert named_cluster("H100x64") == parse_cluster("H100x64")
    assert all(
        named_cluster(name) is None for name in ("H100", "h100x8", "H100X8", "Q9x8", "H100x0", "__path__", "max")
    )


def test_cluster_without_devices_is_refused() -> None:
    good = parse_cluster("H100x8")
    with pytest.raises(InvalidInputError, match="at least 1 device"):
        Cluster(name="none", device=good.device, num_devices=0, intra=good.intra, inter=good.inter)


def test_links_of_the_shipped_nodes() -> None:
    # Datasheets: NVLink 4 450 GB/s a direction; one 400 Gb/s NIC a GPU is 50 GB/s.
    cluster = parse_cluster("H100x16")
    assert (cluster.intra.bytes_per_s, cluster.inter.bytes_per_s) == (450 * GB, 50 * GB)
    # H200 takes the fitted laws of the H100; its links between nodes have general numbers only.
    assert parse_cluster("H200x16").intra.law("all_reduce") == cluster.intra.law("all_reduce")
    assert cluster.inter.law("all_reduce") == cluster.inter.law("all_to_all")
