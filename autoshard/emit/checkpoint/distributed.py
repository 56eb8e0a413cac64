"""The state of a sharded model for ``torch.distributed.checkpoint``.

Torch's checkpoints take every shard to be one box of its tensor. A strided shard (gate|up) is not, and would be saved
wrongly without an error; here such a dim is shown as two, (parts, rest), of which the second is plainly sharded. The
tensors are views: what is loaded into them is in the model.
"""

import math

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.placement_types import Placement

from autoshard._torch import StridedShard
from autoshard.errors import PlanMismatchError
from autoshard.ir import ExpertsLinear, Linear, OpGraph
from autoshard.sharding.rules.experts import is_stacked


def packed_dims(graph: OpGraph) -> dict[str, tuple[int, int]]:
    """Dims of parameters that are several equal parts side by side: name -> (dim, parts)."""
    found: dict[str, tuple[int, int]] = {}
    for _, op, _, p in graph.parameters():
        if isinstance(op, Linear) and op.packed > 1:
            found[p.fqn] = (0, op.packed)
        elif isinstance(op, ExpertsLinear) and op.packed > 1 and not op.interleaved and is_stacked(op):
            found[p.fqn] = (2 if op.transposed and p.role == "weight" else 1, op.packed)
    return found


def distributed_state(model: nn.Module, graph: OpGraph) -> dict[str, Tensor]:
    """Parameters and persistent buffers of a model that a plan was applied to, for ``dcp.save`` and ``dcp.load``.

    The shapes do not depend on the plan, so that what was saved under one can be loaded under another.

    Raises:
        PlanMismatchError: for a parameter that is no DTensor.
    """
    packed, shapes = packed_dims(graph), {p.fqn: p.shape for _, _, _, p in graph.parameters()}
    found: dict[str, Tensor] = {}
    for name, value in model.state_dict(keep_vars=True).items():
        tensor = value.data if isinstance(value, nn.Parameter) else value
        if isinstance(value, nn.Parameter) and not isinstance(tensor, DTensor):
            raise PlanMismatchError(f"the plan was not applied to this model: {name} is no DTensor")
        if tuple(tensor.shape) != shapes.get(name, tuple(tensor.shape)):
            raise PlanMismatchError(
                f"{name} {shapes[name]} is filled up to {tuple(tensor.shape)} by this plan, and torch's checkpoints"
                " would keep that; use save_sharded"
            )
        found[name] = _in_boxes(tensor, *packed[name]) if isinstance(tensor, DTensor) and name in packed else tensor
    return found


def _in_boxes(tensor: DTensor, dim: int, parts: int) -> DTensor:
    """A view with ``dim`` as (parts, rest): every placement is a plain shard of one dim."""
    whole, local = [int(n) for n in tensor.shape], tensor.to_local()
    shape = [*whole[:dim], parts, whole[dim] // parts, *whole[dim + 1 :]]
    placements: list[Placement] = []
    for p in tensor.placements:
        if isinstance(p, Shard | StridedShard):
            assert p.dim != dim or isinstance(p, StridedShard), "a packed dim is only ever split part by part"
            placements.append(Shard(p.dim + 1 if p.dim >= dim else p.dim))
        else:
            placements.append(Replicate())
    return DTensor.from_local(
        torch.unflatten(local, dim, (parts, -1)),
        tensor.device_mesh,
        placements,
        run_check=False,
        shape=torch.Size(shape),
        stride=tuple(math.prod(shape[i + 1 :]) for i in range(len(shape))),
    )
