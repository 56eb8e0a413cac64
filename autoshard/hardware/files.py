"""Device and cluster files: YAML, data only, checked by pydantic; units of the datasheets, converted here.

A cluster file names a device (one that ships, or a whole device file's mapping) and may replace its links::

    name: lab
    device: H100
    num_devices: 24
    devices_per_node: 4
    inter: {gb_per_s: 25, latency_us: 20, efficiency: 0.9}
"""

from collections.abc import Mapping
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from autoshard.errors import InvalidInputError
from autoshard.hardware.cluster import Cluster
from autoshard.hardware.device import Device, KernelLaw
from autoshard.hardware.link import CollectiveLaw, Link
from autoshard.units import GB, GIB, MB, TB, TFLOPS, US

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0, le=1)]


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _LawFile(_File):
    latency_us: NotNegative = 0.0
    latency_per_rank_us: NotNegative = 0.0
    efficiency: Share = 1.0
    saturation_mb: NotNegative = 0.0

    def numbers(self) -> dict[str, float]:
        return {
            "latency_s": self.latency_us * US,
            "latency_per_rank_s": self.latency_per_rank_us * US,
            "efficiency": self.efficiency,
            "saturation_bytes": self.saturation_mb * MB,
        }


class _LinkFile(_LawFile):
    gb_per_s: Positive
    laws: dict[str, _LawFile] = {}
    laws_like: str | None = None

    def build(self, side: str) -> Link:
        laws = {kind: CollectiveLaw(**law.numbers()) for kind, law in self.laws.items()}
        if self.laws_like is not None:
            laws = {**_device_links(self.laws_like)[side == "inter"].laws, **laws}
        return Link(bytes_per_s=self.gb_per_s * GB, laws=laws, **self.numbers())


class _KernelFile(_File):
    compute: Share
    memory: Share
    launch_us: NotNegative


class _DeviceFile(_File):
    name: str
    tflops: dict[str, Positive]
    memory_gib: Positive
    memory_tb_per_s: Positive
    kernels: dict[str, dict[str, _KernelFile]] = {}
    kernels_like: str | None = None
    intra: _LinkFile
    inter: _LinkFile

    def build(self) -> Device:
        kernels: dict[str, Mapping[str, KernelLaw]] = {
            kind: {
                dtype: KernelLaw(compute_efficiency=k.compute, memory_efficiency=k.memory, launch_s=k.launch_us * US)
                for dtype, k in by_dtype.items()
            }
            for kind, by_dtype in self.kernels.items()
        }
        if self.kernels_like is not None:
            kernels = {**load_device(self.kernels_like).kernels, **kernels}
        return Device(
            name=self.name,
            flops_per_s={dtype: v * TFLOPS for dtype, v in self.tflops.items()},
            memory_bytes=self.memory_gib * GIB,
            memory_bytes_per_s=self.memory_tb_per_s * TB,
            kernels=kernels,
        )


class _ClusterFile(_File):
    name: str
    device: str | _DeviceFile
    num_devices: Annotated[int, Field(ge=1)]
    devices_per_node: Annotated[int, Field(ge=1)] = 8
    intra: _LinkFile | None = None
    inter: _LinkFile | None = None


def known_devices() -> tuple[str, ...]:
    """Names of the devices that ship, in alphabetical order."""
    folder = resources.files("autoshard.hardware") / "devices"
    return tuple(sorted(f.name.removesuffix(".yaml") for f in folder.iterdir() if f.name.endswith(".yaml")))


@lru_cache
def _device_file(name: str) -> _DeviceFile:
    if name not in known_devices():
        raise InvalidInputError(f"unknown device {name!r}: known devices are {', '.join(known_devices())}")
    text = (resources.files("autoshard.hardware") / "devices" / f"{name}.yaml").read_text(encoding="utf-8")
    return _DeviceFile.model_validate(yaml.safe_load(text))


@lru_cache
def load_device(name: str) -> Device:
    """The device that ships under ``name``.

    Raises:
        InvalidInputError: for a name that is not one of `known_devices`.
    """
    return _device_file(name).build()


@lru_cache
def _device_links(name: str) -> tuple[Link, Link]:
    file = _device_file(name)
    return file.intra.build("intra"), file.inter.build("inter")


def shipped_cluster(device: str, num_devices: int) -> Cluster:
    """``num_devices`` of a device that ships, 8 to a node, with the links its file describes."""
    intra, inter = _device_links(device)
    name = f"{device}x{num_devices}"
    return Cluster(name=name, device=load_device(device), num_devices=num_devices, intra=intra, inter=inter)


def load_cluster(path: Path) -> Cluster:
    """The cluster that a YAML file describes.

    Raises:
        InvalidInputError: if the file cannot be read, is no YAML, or breaks a rule; one line.
    """
    try:
        data: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
        file = _ClusterFile.model_validate(data)
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"cannot read cluster file {path}: {error}") from error
    except yaml.YAMLError as error:
        raise InvalidInputError(f"cluster file {path} is not YAML: {' '.join(str(error).split())}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "top level"
        raise InvalidInputError(f"cluster file {path}: {where}: {first['msg']}") from error
    if isinstance(file.device, str):
        device = load_device(file.device)
        intra, inter = _device_links(file.device)
    else:
        device = file.device.build()
        intra, inter = file.device.intra.build("intra"), file.device.inter.build("inter")
    return Cluster(
        name=file.name,
        device=device,
        num_devices=file.num_devices,
        devices_per_node=file.devices_per_node,
        intra=intra if file.intra is None else file.intra.build("intra"),
        inter=inter if file.inter is None else file.inter.build("inter"),
    )
