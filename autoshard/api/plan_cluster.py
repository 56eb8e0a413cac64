"""The cluster that a plan was made for, which its file only names."""

from autoshard.errors import InvalidInputError, PlanMismatchError
from autoshard.hardware import Cluster, parse_cluster
from autoshard.hardware.names import LIBRARY
from autoshard.plan import PlanData


def cluster_of(plan: PlanData, cluster: Cluster | None) -> Cluster:
    """The cluster of a plan: the one given, or the one its name means; it must be what the plan was made for.

    Raises:
        InvalidInputError: when the plan's cluster is not known by name and none is given.
        PlanMismatchError: when it is another.
    """
    identity = plan.cluster
    if cluster is None:
        try:
            cluster = parse_cluster(identity.name)
        except InvalidInputError:
            raise InvalidInputError(
                f"the plan was made for {identity.name}, which is no <DEVICE>x<COUNT>: give its file with --cluster"
            ) from None
    if identity.name.endswith(LIBRARY) != cluster.name.endswith(LIBRARY):
        raise PlanMismatchError(
            f"the plan was made for {identity.name}, and {cluster.name} chooses collectives otherwise:"
            f" name the cluster {'with' if identity.name.endswith(LIBRARY) else 'without'} {LIBRARY} at its end"
        )
    for name, planned, here in (
        ("device", identity.device, cluster.device.name),
        ("num_devices", identity.num_devices, cluster.num_devices),
        ("devices_per_node", identity.devices_per_node, cluster.devices_per_node),
    ):
        if planned != here:
            raise PlanMismatchError(
                f"the plan was made for {identity.name} with {name} = {planned}; {cluster.name} has {here}"
            )
    return cluster
