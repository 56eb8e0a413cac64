"""The state of a sharded model for ``torch.distributed.checkpoint``.

Torch's checkpoints take every shard to be one box of its tensor. A strided shard (gate|up) is not, and would be saved
wrongly without an error; here such a dim is shown as two, (parts, rest), of which the second is plainly sharded. The
tensors are views: what is loaded into them is in the model. Rows that only fill up a dim (a vocabulary, experts,
widths) are left out.
"""

import math

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.placement_types import Placement

from autoshard._torch import StridedShard
from autoshard.errors import PlanMismatchError
from autoshard.ir import ExpertsLinear, Linear, OpGraph
from autoshard.sharding import ParamPlacement, Strategy, place_all
from autoshard.sharding.padding import PLAIN
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


def distributed_state(model: nn.Module, graph: OpGraph, strategy: Strategy) -> dict[str, Tensor]:
    """Parameters and persistent buffers of a model that a plan was applied to, for ``dcp.save`` and ``dcp.load``.

    The shapes do not depend on the plan, so that what was saved under one can be loaded under another.

    Raises:
        PlanMismatchError: for a parameter that is no DTensor, or filled up in the middle (heads in groups).
    """
    packed, placed = packed_dims(graph), {p.fqn: p for p in place_all(graph, strategy)}
    found: dict[str, Tensor] = {}
    for name, value in model.state_dict(keep_vars=True).items():
        tensor = value.data if isinstance(value, nn.Parameter) else value
        if isinstance(value, nn.Parameter) and not isinstance(tensor, DTensor):
            raise PlanMismatchError(f"the plan was not applied to this model: {name} is no DTensor")
        if isinstance(tensor, DTensor) and name in placed:
            filled = tuple(tensor.shape) != placed[name].shape
            if filled or name in packed:
                tensor = _in_boxes(tensor, placed[name], packed.get(name))
        found[name] = tensor
    return found


def _in_boxes(tensor: DTensor, placed: ParamPlacement, packed: tuple[int, int] | None) -> DTensor:
    """A view in the model's own shape, without padding, in which every placement is a plain shard of one dim.

    Several parts side by side (``packed``: dim, parts) are shown as (parts, rest). Padding is at the end of a dim or
    of each part, and shares are then those that torch deals out of a dim that does not divide: rounded up, in order.
    """
    local, coordinates = tensor.to_local(), tensor.device_mesh.get_coordinate()
    assert coordinates is not None
    shape, dim, parts = list(placed.shape), *(packed or (len(placed.shape), 1))
    if packed is not None:
        shape[dim : dim + 1] = [parts, shape[dim] // parts]
        local = torch.unflatten(local, dim, (parts, -1))
    placements: list[Placement] = []
    for at, (p, ours) in enumerate(zip(tensor.placements, placed.placements, strict=True)):
        if not isinstance(p, Shard | StridedShard):
            placements.append(Replicate())
            continue
        assert p.dim != dim or isinstance(p, StridedShard), "a packed dim is only ever split part by part"
        shown = p.dim + 1 if p.dim >= dim else p.dim
        placements.append(Shard(shown))
        if tensor.shape[p.dim] != placed.shape[p.dim]:
            share = -(-shape[shown] // tensor.device_mesh.size(at))
            if ours.grain != PLAIN or local.shape[shown] != share:
                raise PlanMismatchError(
                    f"{placed.fqn} {placed.shape} is filled up to {tuple(tensor.shape)} head by head, and torch's"
                    " checkpoints would keep that; use save_sharded"
                )
            local = local.narrow(shown, 0, min(share, shape[shown] - coordinates[at] * share))
    return DTensor.from_local(
        local,
        tensor.device_mesh,
        placements,
        run_check=False,
        shape=torch.Size(shape),
        stride=tuple(math.prod(shape[i + 1 :]) for i in range(len(shape))),
    )
