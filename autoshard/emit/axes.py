"""The mesh of one replica, and its directions: one `DeviceMesh` of nested pieces in which every axis is a view.

The mesh has dims ``("pp", *StageMesh.dims)``. An axis (``dp``, ``tp``, ``ep`` ...) is a run of consecutive dims
flattened into one, with its own process group; a parameter's submesh is a few such axes side by side.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from autoshard._torch import concatenated, flattened
from autoshard.errors import PlanMismatchError
from autoshard.ir import OpGraph
from autoshard.sharding import Degrees, StageMesh, mesh_of
from autoshard.sharding.layout import Axis

PIPELINE = "pp"
"""Name of the outermost mesh dim."""


@dataclass(slots=True)
class TokenShards:
    """What a pass says about tokens split over an axis: their shape (b, s) in all, and whether they travel in it."""

    leading: tuple[int, ...] = ()
    carried: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshAxis:
    """A direction of the mesh as this rank sees it; ``group`` is None where there is nobody else."""

    size: int
    coordinate: int
    group: ProcessGroup | None
    tokens: TokenShards = field(default_factory=TokenShards, compare=False)


def mesh_dims(stage: StageMesh, degrees: Degrees) -> tuple[tuple[str, int], ...]:
    """Names and sizes of the dims of the mesh of one replica, outermost first."""
    return ((PIPELINE, degrees.pp), *stage.dims)


def device_mesh(graph: OpGraph, degrees: Degrees, device_type: str = "cuda") -> DeviceMesh:
    """The mesh of one replica, with a flattened view (and a process group) for every axis of the stage.

    Every rank of the default process group must call this.

    Raises:
        PlanMismatchError: when the number of ranks is not the plan's.
    """
    world = dist.get_world_size() if dist.is_initialized() else 1
    if world != degrees.num_devices:
        raise PlanMismatchError(
            f"the plan needs pp*dp*tp = {degrees.pp}*{degrees.dp}*{degrees.tp} = {degrees.num_devices} ranks, "
            f"this job has {world}"
        )
    stage = mesh_of(graph, degrees)
    dims = mesh_dims(stage, degrees)
    mesh = init_device_mesh(device_type, tuple(n for _, n in dims), mesh_dim_names=tuple(name for name, _ in dims))
    for axis, view in stage.views:
        if view:
            flattened(mesh, view, axis)
    return mesh


def check_mesh(mesh: DeviceMesh, stage: StageMesh, degrees: Degrees) -> None:
    """Raise PlanMismatchError unless ``mesh`` is what `device_mesh` makes for these degrees."""
    wanted = mesh_dims(stage, degrees)
    found = tuple(zip(mesh.mesh_dim_names or (), mesh.shape, strict=True)) if mesh.mesh_dim_names else mesh.shape
    if found != wanted:
        raise PlanMismatchError(f"the plan needs a mesh of {dict(wanted)}, got {found}; make it with device_mesh()")


def submesh(mesh: DeviceMesh, stage: StageMesh, axes: Sequence[str]) -> DeviceMesh:
    """The mesh of the named axes side by side, for example ``("dp", "tp")``. Every axis must have a view.

    It is kept on the mesh, as `flattened` keeps views: making one takes milliseconds.
    """
    kept: dict[tuple[str, ...], DeviceMesh] = mesh.__dict__.setdefault("_autoshard_submeshes", {})
    key = tuple(axes)
    if key not in kept:
        kept[key] = concatenated([flattened(mesh, stage.view(axis), axis) for axis in axes])  # type: ignore[arg-type]
    return kept[key]


def mesh_axes(mesh: DeviceMesh, stage: StageMesh) -> Mapping[Axis, MeshAxis]:
    """Every axis of the stage as this rank sees it. On meta devices there are coordinates but nothing is sent."""
    found: dict[Axis, MeshAxis] = {}
    for axis, view in stage.views:
        if stage.size(axis) == 1:
            found[axis] = MeshAxis(size=1, coordinate=0, group=None)
            continue
        flat = flattened(mesh, view, axis)
        found[axis] = MeshAxis(size=flat.size(), coordinate=flat.get_local_rank(), group=flat.get_group())
    return found


def local_part(tensor: torch.Tensor, dim: int, axis: MeshAxis, packed: int = 1) -> torch.Tensor:
    """This rank's part of dim ``dim`` of a whole tensor: of each of ``packed`` parts side by side, the same share."""
    if axis.size == 1:
        return tensor
    dim %= tensor.ndim
    width = tensor.shape[dim] // packed
    assert width * packed == tensor.shape[dim] and width % axis.size == 0, (tuple(tensor.shape), dim, packed, axis)
    share = width // axis.size
    if packed == 1:
        return tensor.narrow(dim, axis.coordinate * share, share)
    parts = torch.unflatten(tensor, dim, (packed, axis.size, share))
    return parts.select(dim + 1, axis.coordinate).flatten(dim, dim + 1)
