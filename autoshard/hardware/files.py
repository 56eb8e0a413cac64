"""Device and cluster files: YAML, data only, checked by pydantic; units of the datasheets, converted here.

A cluster file names a device (one that ships, or a whole device file's mapping) and may replace its links::

    name: lab
    device: H100
    num_devices: 24
    devices_per_node: 4
    inter: {gb_per_s: 25, latency_us: 20, efficiency: 0.9}

A device file gives datasheet numbers (``tflops``, ``memory_gib``, ``memory_tb_per_s``, ``units``) and its links; its
efficiencies are its own (``kernels``, ``laws``, ``dispatch``) or a relative's (``kernels_like``, ``laws_like``); its
own then replace some of them.
"""

from collections.abc import Mapping
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import Field, ValidationError

from autoshard.errors import InvalidInputError
from autoshard.hardware.cluster import Cluster
from autoshard.hardware.device import DEFAULT_UNITS, Device
from autoshard.hardware.kernel_law import KernelLaw
from autoshard.hardware.link import Link
from autoshard.hardware.schema import (
    CollectiveEntry,
    CollectiveNumbers,
    DispatchEntry,
    KernelEntry,
    NotNegative,
    Positive,
    StrictModel,
    kernel_laws,
)
from autoshard.units import GB, GIB, TB, TFLOPS, US

DEVICES_PER_NODE = 8
_GENERAL = ("latency_s", "latency_per_rank_s", "efficiency", "saturation_bytes")


class _LinkFile(CollectiveNumbers):
    gb_per_s: Positive
    eager_us: NotNegative | None = None
    laws: dict[str, CollectiveEntry] = {}
    engine_laws: dict[str, CollectiveEntry] = {}
    laws_like: str | None = None
    source: str = ""

    def build(self, side: str) -> Link:
        laws = {kind: law.law() for kind, law in self.laws.items()}
        engine_laws = {name: law.law() for name, law in self.engine_laws.items()}
        eager_s = None if self.eager_us is None else self.eager_us * US
        if self.laws_like is not None:
            like = _device_links(self.laws_like)[side == "inter"]
            laws, engine_laws = {**like.laws, **laws}, {**like.engine_laws, **engine_laws}
            eager_s = like.eager_latency_s if eager_s is None else eager_s
        return Link(
            bytes_per_s=self.gb_per_s * GB,
            laws=laws,
            engine_laws=engine_laws,
            eager_latency_s=eager_s or 0.0,
            **{name: value for name, value in self.numbers().items() if name in _GENERAL},
        )


class _DeviceFile(StrictModel):
    name: str
    tflops: dict[str, Positive]
    memory_gib: Positive
    memory_tb_per_s: Positive
    units: Annotated[int, Field(ge=1)] = DEFAULT_UNITS
    devices_per_node: Annotated[int, Field(ge=1)] = DEVICES_PER_NODE
    kernels: dict[str, dict[str, KernelEntry | str]] = {}
    kernels_like: str | None = None
    dispatch: dict[str, DispatchEntry] = {}
    intra: _LinkFile
    inter: _LinkFile

    def build(self) -> Device:
        kernels: dict[str, Mapping[str, KernelLaw]] = {
            kind: kernel_laws(kind, entries) for kind, entries in self.kernels.items()
        }
        dispatch = {name: entry.law() for name, entry in self.dispatch.items()}
        if self.kernels_like is not None:
            like = load_device(self.kernels_like)
            kinds = {**like.kernels, **kernels}
            kernels = {kind: {**like.kernels.get(kind, {}), **kernels.get(kind, {})} for kind in kinds}
            dispatch = {**like.dispatch, **dispatch}
        return Device(
            name=self.name,
            flops_per_s={dtype: v * TFLOPS for dtype, v in self.tflops.items()},
            memory_bytes=self.memory_gib * GIB,
            memory_bytes_per_s=self.memory_tb_per_s * TB,
            num_units=self.units,
            kernels=kernels,
            dispatch=dispatch,
        )


class _ClusterFile(StrictModel):
    name: str
    device: str | _DeviceFile
    num_devices: Annotated[int, Field(ge=1)]
    devices_per_node: Annotated[int, Field(ge=1)] | None = None
    intra: _LinkFile | None = None
    inter: _LinkFile | None = None


def known_devices() -> tuple[str, ...]:
    """Names of the devices that ship, in alphabetical order."""
    folder = resources.files("autoshard.hardware") / "devices"
    return tuple(sorted(f.name.removesuffix(".yaml") for f in folder.iterdir() if f.name.endswith(".yaml")))


def device_file_text(name: str) -> str:
    """The text of the file of the device that ships under ``name``.

    Raises:
        InvalidInputError: for a name that is not one of `known_devices`.
    """
    if name not in known_devices():
        raise InvalidInputError(f"unknown device {name!r}: known devices are {', '.join(known_devices())}")
    return (resources.files("autoshard.hardware") / "devices" / f"{name}.yaml").read_text(encoding="utf-8")


@lru_cache
def _device_file(name: str) -> _DeviceFile:
    return _DeviceFile.model_validate(yaml.safe_load(device_file_text(name)))


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
    """``num_devices`` of a device that ships, with the nodes and links that its file describes."""
    intra, inter = _device_links(device)
    name = f"{device}x{num_devices}"
    return Cluster(
        name=name,
        device=load_device(device),
        num_devices=num_devices,
        devices_per_node=_device_file(device).devices_per_node,
        intra=intra,
        inter=inter,
    )


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
        device, described = load_device(file.device), _device_file(file.device)
        intra, inter = _device_links(file.device)
    else:
        device, described = file.device.build(), file.device
        intra, inter = described.intra.build("intra"), described.inter.build("inter")
    return Cluster(
        name=file.name,
        device=device,
        num_devices=file.num_devices,
        devices_per_node=file.devices_per_node or described.devices_per_node,
        intra=intra if file.intra is None else file.intra.build("intra"),
        inter=inter if file.inter is None else file.inter.build("inter"),
    )
