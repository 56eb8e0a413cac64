"""Parameters as DTensors: every rank keeps its own part, nothing is sent."""

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.placement_types import Placement as TorchPlacement

from autoshard._torch import StridedShard
from autoshard.emit.axes import local_part, submesh
from autoshard.emit.padding import fill_up
from autoshard.emit.steps import Axes
from autoshard.errors import PlanMismatchError
from autoshard.ir import OpGraph
from autoshard.sharding import ParamPlacement, StageMesh


def torch_placements(placement: ParamPlacement) -> tuple[TorchPlacement, ...]:
    """One torch placement per dim of the parameter's submesh.

    A dim of several parts side by side (gate|up) is a strided shard: a plain ``Shard`` would give one rank only gates
    and another only ups, and the result would be wrong without any error.
    """
    found: list[TorchPlacement] = []
    for p in placement.placements:
        if p.kind == "replicate":
            found.append(Replicate())
        else:
            found.append(Shard(p.dim) if p.packed == 1 else StridedShard(p.dim, split_factor=p.packed))
    return tuple(found)


def check_parameters(model: nn.Module, graph: OpGraph) -> None:
    """Raise PlanMismatchError, naming the first difference, unless the model's parameters are exactly the graph's."""
    have = {name: tuple(p.shape) for name, p in model.named_parameters(remove_duplicate=False)}
    want = {p.fqn: p.shape for _, _, _, p in graph.parameters()}
    for name, shape in want.items():
        if name not in have:
            raise PlanMismatchError(f"the plan has a parameter {name} {shape}, the model has none of that name")
        if have[name] != shape:
            raise PlanMismatchError(f"parameter {name} is {shape} in the plan and {have[name]} in the model")
    for name, shape in have.items():
        if name not in want:
            raise PlanMismatchError(f"the model has a parameter {name} {shape}, the plan has none of that name")


def shard_parameters(
    model: nn.Module, placements: tuple[ParamPlacement, ...], mesh: DeviceMesh, stage: StageMesh, axes: Axes
) -> None:
    """Replace every parameter of ``model`` by a DTensor with its placement; tied parameters stay tied.

    A dim that does not divide is filled up with zeros (`autoshard.sharding.padding`), and the DTensor is of that shape.

    Parts (and whole buffers) move to the mesh's device, so that a model too large for one device can be sharded from
    host memory; what is on meta stays there.
    """
    meshes: dict[tuple[str, ...], DeviceMesh] = {}
    done: dict[int, nn.Parameter] = {}
    for placement in placements:
        owner, _, name = placement.fqn.rpartition(".")
        module = model.get_submodule(owner)
        whole = module._parameters[name]
        assert whole is not None
        if id(whole) not in done:
            part = whole.detach()
            for axis, p in zip(placement.mesh_dims, placement.placements, strict=True):
                if p.kind == "shard":
                    part = fill_up(part, p.dim, axes[axis].size, p.packed, p.grain)  # type: ignore[index]
                    part = local_part(part, p.dim, axes[axis], p.packed)  # type: ignore[index]
            dims, shape = placement.mesh_dims, placement.padded_shape(stage)
            if dims not in meshes:
                meshes[dims] = submesh(mesh, stage, dims)
            if part.numel() != whole.numel() or not part.is_contiguous():
                # A copy, so that the whole tensor is freed once its last owner lets go of it.
                part = part.clone(memory_format=torch.contiguous_format)
            local = _to_device(part, mesh)
            tensor = DTensor.from_local(
                local,
                meshes[dims],
                torch_placements(placement),
                run_check=False,
                shape=torch.Size(shape),
                stride=whole.stride() if shape == tuple(whole.shape) else _contiguous(shape),
            )
            done[id(whole)] = nn.Parameter(tensor, requires_grad=False)
            done[id(done[id(whole)])] = done[id(whole)]
        module._parameters[name] = done[id(whole)]
    for module in model.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = _to_device(buffer, mesh)


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    return torch.empty(shape, device="meta").stride()


def _to_device(tensor: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor:
    return tensor if tensor.is_meta else tensor.to(mesh.device_type)
