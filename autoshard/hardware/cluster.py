"""A cluster: equal devices in equal nodes, a fast link inside a node and a slower one between nodes."""

from dataclasses import dataclass

from autoshard.errors import InvalidInputError
from autoshard.hardware.device import Device
from autoshard.hardware.link import Link


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """``num_devices`` devices, ``devices_per_node`` to a node (the last node may be part of one).

    ``intra`` joins the devices of a node, ``inter`` the nodes; both give every device a port of its own.
    """

    name: str
    device: Device
    num_devices: int
    devices_per_node: int = 8
    intra: Link
    inter: Link

    def __post_init__(self) -> None:
        if self.num_devices < 1:
            raise InvalidInputError(f"cluster {self.name}: needs at least 1 device, got {self.num_devices}")
        if self.devices_per_node < 1:
            raise InvalidInputError(f"cluster {self.name}: needs at least 1 device a node, got {self.devices_per_node}")

    @property
    def num_nodes(self) -> int:
        """Nodes, the last one possibly not full."""
        return -(-self.num_devices // self.devices_per_node)
