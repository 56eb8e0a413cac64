from pathlib import Path

import pytest

from autoshard.errors import InvalidInputError
from autoshard.hardware import KERNEL_KINDS, KernelLaw, known_devices, load_device, parse_cluster
from autoshard.units import GB, GIB, US

DEVICES = Path(__file__).parents[2] / "autoshard" / "hardware" / "devices"


def write(folder: Path, text: str) -> str:
    path = folder / "lab.yaml"
    path.write_text(text)
    return str(path)


def test_shipped_devices() -> None:
    assert known_devices() == ("A100", "B200", "GB200", "H100", "H20", "H200", "L40S", "MI300X")
    for name in known_devices():
        device = load_device(name)
        assert device.name == name
        for kind in KERNEL_KINDS:
            law = device.kernel(kind)
            assert 0 < law.memory_efficiency <= 1 and 0 < law.launch_s < 100 * US


def test_units_are_converted() -> None:
    device = load_device("H100")
    assert device.peak_flops_per_s("bfloat16") == 989e12
    assert device.memory_bytes == 79.2 * GIB
    assert device.memory_bytes_per_s == 3.35e12


def test_device_without_a_dtype_says_what_it_has() -> None:
    with pytest.raises(
        InvalidInputError, match="A100 does not compute in float8_e4m3fn: it has bfloat16, float16, int8"
    ):
        load_device("A100").peak_flops_per_s("float8_e4m3fn")


def test_dtype_without_measurements_takes_bfloat16s() -> None:
    device = load_device("H100")
    assert device.kernel("gemm", "float16") == device.kernel("gemm", "bfloat16")
    assert device.kernel("gemm", "float8_e4m3fn") != device.kernel("gemm", "bfloat16")


@pytest.mark.parametrize("name", known_devices())
def test_every_number_has_a_source(name: str) -> None:
    # A source on the line itself or in the comment above covers a number; a file without any would be a guess.
    text = (DEVICES / f"{name}.yaml").read_text()
    for key in ("tflops:", "memory_gib:", "memory_tb_per_s:", "kernels", "intra:"):
        line = next(row for row in text.splitlines() if row.startswith(key))
        position = text.index(line)
        near = text[max(0, position - 700) : position + 400]
        assert any(mark in near for mark in ("[datasheet", "[measured", "[fitted", "[assumed", "[inherited")), line


def test_cluster_file(tmp_path: Path) -> None:
    text = """
    name: lab
    device: H100
    num_devices: 24
    devices_per_node: 4
    inter: {gb_per_s: 25, latency_us: 7, efficiency: 0.9, laws: {all_reduce: {latency_us: 9}}}
    """
    cluster = parse_cluster(write(tmp_path, text))
    assert (cluster.name, cluster.num_devices, cluster.num_nodes) == ("lab", 24, 6)
    assert cluster.inter.bytes_per_s == 25 * GB
    assert cluster.inter.law("all_gather").latency_s == pytest.approx(7 * US)
    assert cluster.inter.law("all_reduce").latency_s == pytest.approx(9 * US)
    assert cluster.intra == parse_cluster("H100x8").intra


def test_cluster_file_with_a_device_of_its_own(tmp_path: Path) -> None:
    text = """
    name: lab
    num_devices: 2
    device:
      name: Toy
      tflops: {bfloat16: 100}
      memory_gib: 16
      memory_tb_per_s: 1
      kernels_like: H100
      kernels: {memory: {bfloat16: {compute: 1, memory: 0.5, launch_us: 1}}}
      intra: {gb_per_s: 100}
      inter: {gb_per_s: 10}
    """
    device = parse_cluster(write(tmp_path, text)).device
    assert device.kernel("memory") == KernelLaw(compute_efficiency=1, memory_efficiency=0.5, launch_s=1 * US)
    assert device.kernel("gemm") == load_device("H100").kernel("gemm")


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("name: [", ["is not YAML"]),
        ("- 1", ["top level"]),
        ("{name: x, device: H100}", ["num_devices", "required"]),
        ("{name: x, device: H100, num_devices: 0}", ["num_devices", "greater than or equal to 1"]),
        ("{name: x, device: H100, num_devices: 8, speed: 3}", ["speed", "not permitted"]),
        ("{name: x, device: H10, num_devices: 8}", ["unknown device 'H10'", "H100"]),
        ("{name: x, device: H100, num_devices: 8, inter: {gb_per_s: -1}}", ["inter.gb_per_s", "greater than 0"]),
        ("{name: x, device: H100, num_devices: 8, inter: {gb_per_s: 1, laws: {gossip: {}}}}", ["gossip", "all_reduce"]),
    ],
)
def test_wrong_files_give_one_line(tmp_path: Path, text: str, parts: list[str]) -> None:
    with pytest.raises(InvalidInputError) as error:
        parse_cluster(write(tmp_path, text))
    line = str(error.value)
    assert "\n" not in line
    assert all(part in line for part in parts), line
