"""How the plan above runs: torch alone, no other package.

Parameters become DTensors. A module runs its own forward on its local shards; activations move only where the plan
says, by explicit collectives. This part is the same in every file that autoshard exports.
"""

from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.placement_types import Placement
from torch.overrides import TorchFunctionMode

from autoshard._torch import StridedShard, concatenated, flattened


@dataclass(frozen=True)
class Axis:
    """A direction of the mesh as this rank sees it."""

    size: int
    coordinate: int
    group: Any


@dataclass(frozen=True)
class Move:
    """A collective, or a local slice, along ``axis`` on dim ``dim``.

    Of ``packed`` equal parts side by side, or of unequal ones of the widths ``parts``, every rank has its share.
    """

    kind: str
    axis: str
    dim: int = -1
    packed: int = 1
    parts: tuple[int, ...] = ()


Moves = Sequence[Move]
Axes = dict[str, Axis]


# --- the mesh and the parameters


def make_mesh(dims: dict[str, int], views: dict[str, tuple[str, ...]], device_type: str) -> DeviceMesh:
    """The mesh of one replica, every axis of it flattened; all ranks call this."""
    mesh = init_device_mesh(device_type, tuple(dims.values()), mesh_dim_names=tuple(dims))
    for axis, view in views.items():
        flattened(mesh, view, axis)
    return mesh


def make_axes(mesh: DeviceMesh, views: dict[str, tuple[str, ...]]) -> Axes:
    """Every axis with this rank's place on it."""
    found = {}
    for axis, view in views.items():
        line = flattened(mesh, view, axis)
        found[axis] = Axis(line.size(), line.get_local_rank(), line.get_group())
    return found


def read_placement(text: str) -> Placement:
    """``R``, ``S(dim)`` or ``S(dim, parts=n)``: of each of n parts side by side every rank gets its share."""
    if text == "R":
        return Replicate()
    dim, _, parts = text[2:-1].partition(", parts=")
    return StridedShard(int(dim), split_factor=int(parts)) if parts else Shard(int(dim))


def my_part(x: Tensor, dim: int, axis: Axis, packed: int = 1) -> Tensor:
    """This rank's share of each of ``packed`` parts of ``x`` along ``dim``."""
    dim %= x.ndim
    return torch.unflatten(x, dim, (packed, axis.size, -1)).select(dim + 1, axis.coordinate).flatten(dim, dim + 1)


def place_parameter(
    model: nn.Module, name: str, dims: tuple[str, ...], texts: tuple[str, ...], mesh: DeviceMesh, state: Any
) -> None:
    """Replace a parameter by a DTensor of its local part; tied parameters stay one."""
    axes, views, done = state
    owner, _, short = name.rpartition(".")
    module = model.get_submodule(owner)
    whole = module._parameters[short]
    assert whole is not None
    if id(whole) not in done:
        part = whole.detach()
        placements = [read_placement(t) for t in texts]
        for axis, placement in zip(dims, placements, strict=True):
            if isinstance(placement, Shard | StridedShard) and axes[axis].size > 1:
                part = my_part(part, placement.dim, axes[axis], getattr(placement, "split_factor", 1))
        part = part.clone(memory_format=torch.contiguous_format)
        part = part if part.is_meta else part.to(mesh.device_type)
        where = concatenated([flattened(mesh, views[axis], axis) for axis in dims])
        tensor = DTensor.from_local(
            part, where, placements, run_check=False, shape=whole.shape, stride=whole.contiguous().stride()
        )
        done[id(whole)] = nn.Parameter(tensor, requires_grad=False)
        done[id(done[id(whole)])] = done[id(whole)]
    module._parameters[short] = done[id(whole)]


@contextmanager
def local_shards(modules: Sequence[nn.Module]) -> Any:
    """Within it the modules' own parameters are this rank's plain tensors."""
    held = [(m, dict(m._parameters)) for m in modules]
    for module, parameters in held:
        for name, p in parameters.items():
            if isinstance(p, DTensor) or (p is not None and isinstance(p.data, DTensor)):
                module._parameters[name] = p.to_local()  # type: ignore[attr-defined]
    try:
        yield
    finally:
        for module, parameters in held:
            module._parameters.update(parameters)


def run_local(model: nn.Module, at: str, owners: Sequence[str]) -> None:
    """Let the module ``at`` run with the local shards of the modules ``owners``."""
    module, inside = model.get_submodule(at), [model.get_submodule(o) for o in owners]
    forward = module.forward

    def run(*args: Any, **kwargs: Any) -> Any:
        with local_shards(inside):
            return forward(*args, **kwargs)

    module.forward = run


# --- moving activations


def go(x: Tensor, moves: Moves, axes: Axes) -> Tensor:
    """``x`` after all moves."""
    for move in moves:
        axis = axes[move.axis]
        if move.parts and move.kind != "all_gather":
            x = by_rank(x, move.parts, axis.size)
        if move.kind == "slice":
            x = my_part(x, move.dim, axis, move.packed)
        elif move.kind == "all_reduce":
            x = x.clone(memory_format=torch.contiguous_format)
            dist.all_reduce(x, group=axis.group)
        elif move.kind == "all_gather":
            x = gather(x, move.dim, axis, move.packed)
            x = by_part(x, move.parts, axis.size) if move.parts else x
        else:
            x = scatter_sum(x, move.dim, axis, move.packed)
    return x


def by_rank(x: Tensor, parts: Sequence[int], ranks: int) -> Tensor:
    """The last dim, of ``parts`` side by side, as all parts of rank 0, then all of rank 1, ..."""
    pieces = [torch.unflatten(p, -1, (ranks, -1)) for p in torch.split(x, list(parts), -1)]
    return torch.cat(pieces, -1).flatten(-2)


def by_part(x: Tensor, parts: Sequence[int], ranks: int) -> Tensor:
    """The inverse of `by_rank`."""
    pieces = torch.split(torch.unflatten(x, -1, (ranks, -1)), [p // ranks for p in parts], -1)
    return torch.cat([p.flatten(-2) for p in pieces], -1)


def own_rows(x: Tensor, dim: int, parts: Sequence[int], axis: Axis) -> Tensor:
    """This rank's share of each of ``parts`` side by side along ``dim``."""
    shares = [
        p.narrow(dim, axis.coordinate * (n // axis.size), n // axis.size)
        for p, n in zip(torch.split(x, list(parts), dim), parts, strict=True)
    ]
    return torch.cat(shares, dim)


def gather(x: Tensor, dim: int, axis: Axis, packed: int) -> Tensor:
    """All ranks' shares of every part, in rank order."""
    every = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(axis.size)]
    dist.all_gather(every, x.contiguous(), group=axis.group)
    dim %= x.ndim
    return torch.stack([torch.unflatten(e, dim, (packed, -1)) for e in every], dim + 1).flatten(dim, dim + 2)


def scatter_sum(x: Tensor, dim: int, axis: Axis, packed: int) -> Tensor:
    """This rank's share of the sum over ranks."""
    shares = [my_part(x, dim, Axis(axis.size, i, None), packed).contiguous() for i in range(axis.size)]
    out = torch.empty_like(shares[0])
    dist.reduce_scatter(out, shares, group=axis.group)
    return out


def change_first(args: tuple[Any, ...], kwargs: dict[str, Any], change: Callable[[Tensor], Tensor]) -> Any:
    """The arguments of a forward with its first tensor, the activation, changed."""
    for i, a in enumerate(args):
        if isinstance(a, Tensor):
            return (*args[:i], change(a), *args[i + 1 :]), kwargs
    name = next(n for n, a in kwargs.items() if isinstance(a, Tensor))
    return args, {**kwargs, name: change(kwargs[name])}


class KeepWidth(TorchFunctionMode):
    """A reshape of a tensor ``local`` wide to the ``full`` width of the whole model keeps its width."""

    def __init__(self, full: int, local: int) -> None:
        super().__init__()
        self.full, self.local = full, local

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Mend ``view`` and ``reshape``."""
        if func in (Tensor.view, Tensor.reshape, torch.reshape) and args[0].shape[-1:] == (self.local,):
            shape = tuple(args[1]) if isinstance(args[1], list | tuple) else tuple(args[1:])
            if shape[-1] == self.full:
                return func(args[0], (*shape[:-1], self.local))
        return func(*args, **(kwargs or {}))
