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


def distributed_state(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and persistent buffers of a model that a plan was applied to, for ``dcp.save`` and ``dcp.load``.

    Raises:
        PlanMismatchError: for a parameter that is no DTensor.
    """
    found: dict[str, Tensor] = {}
    for name, value in model.state_dict(keep_vars=True).items():
        tensor = value.data if isinstance(value, nn.Parameter) else value
        if isinstance(value, nn.Parameter) and not isinstance(tensor, DTensor):
            raise PlanMismatchError(f"the plan was not applied to this model: {name} is no DTensor")
        found[name] = _in_boxes(tensor) if isinstance(tensor, DTensor) else tensor
    return found


def _in_boxes(tensor: DTensor) -> DTensor:
    """A view in which every placement is a plain shard of one dim."""
    packed = {p.dim: p.split_factor for p in tensor.placements if isinstance(p, StridedShard)}
    if not packed:
        return tensor
    local = tensor.to_local()
    held, whole = [int(n) for n in local.shape], [int(n) for n in tensor.shape]
    split = {int(d): int(n) for d, n in packed.items()}
    shape: list[int] = []
    parts: list[int] = []
    new_dim: dict[int, int] = {}
    for dim, size in enumerate(whole):
        if dim in split:
            shape += [split[dim], size // split[dim]]
            parts += [split[dim], held[dim] // split[dim]]
        else:
            shape.append(size)
            parts.append(held[dim])
        new_dim[dim] = len(shape) - 1
    placements: list[Placement] = [
        Shard(new_dim[p.dim]) if isinstance(p, Shard | StridedShard) else Replicate() for p in tensor.placements
    ]
    stride = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
    return DTensor.from_local(
        local.view(parts),
        tensor.device_mesh,
        placements,
        run_check=False,
        shape=torch.Size(shape),
        stride=tuple(stride),
    )
