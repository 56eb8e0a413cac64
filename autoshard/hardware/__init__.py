"""Devices, links and clusters, and the YAML files that describe them. Never imports torch."""

from autoshard.hardware.cluster import Cluster
from autoshard.hardware.device import Device
from autoshard.hardware.dispatch_law import DispatchLaw
from autoshard.hardware.files import device_file_text, known_devices, load_cluster, load_device
from autoshard.hardware.kernel_law import KERNEL_KINDS, KernelKind, KernelLaw
from autoshard.hardware.link import COLLECTIVE_KINDS, CollectiveKind, CollectiveLaw, Link
from autoshard.hardware.names import named_cluster, parse_cluster

__all__ = [
    "COLLECTIVE_KINDS",
    "KERNEL_KINDS",
    "Cluster",
    "CollectiveKind",
    "CollectiveLaw",
    "Device",
    "DispatchLaw",
    "KernelKind",
    "KernelLaw",
    "Link",
    "device_file_text",
    "known_devices",
    "load_cluster",
    "load_device",
    "named_cluster",
    "parse_cluster",
]
