"""Running the steps of a plan: each is one public ``torch.distributed`` call on one axis, or a free local slice.

A tensor between fused ops is (..., feature); its token dim is dim 0 of the (tokens, feature) matrix that the
dispatch and the combine of experts work on; a residual whose tokens are split has `autoshard.emit.tokens`. A feature
dim of ``packed`` parts side by side (gate|up) is gathered, scattered and sliced part by part, so that a rank's share
always holds the same columns of every part. One that does not divide is filled up before it is scattered or sliced, and
cut to its width after it was gathered.
"""

from collections.abc import Iterable, Mapping

import torch
import torch.distributed as dist
from torch import Tensor

from autoshard.emit.axes import MeshAxis, local_part
from autoshard.emit.calls import all_gather_single, reduce_scatter_single
from autoshard.emit.padding import cut_off, fill_up
from autoshard.emit.parts import by_part, by_rank
from autoshard.emit.tokens import gather_tokens, split_tokens, sum_tokens
from autoshard.sharding.layout import Axis, Step

Axes = Mapping[Axis, MeshAxis]


_TOKENS = {"slice": split_tokens, "all_gather": gather_tokens, "reduce_scatter": sum_tokens}
"""Steps of a residual whose tokens are split."""


def run_steps(x: Tensor, steps: Iterable[Step], axes: Axes) -> Tensor:
    """``x`` after all steps, in order. Steps along an axis of size one do nothing."""
    for step in steps:
        if axes[step.axis].size > 1:
            x = run_step(x, step, axes[step.axis])
    return x


def run_step(x: Tensor, step: Step, axis: MeshAxis) -> Tensor:
    """``x`` after one step along an axis of at least two ranks."""
    if step.dim == "token" and step.axis == "tp":
        return _TOKENS[step.kind](x, axis)
    dim = -1 if step.dim == "feature" else 0
    if step.dim == "feature" and step.kind in ("slice", "reduce_scatter"):
        x = fill_up(x, dim, axis.size, step.packed, step.grain)
    if step.parts and step.kind in ("slice", "reduce_scatter"):
        x = by_rank(x, dim, step.parts, axis.size)
    match step.kind:
        case "slice" if step.dim == "token":
            return local_tokens(x, axis)
        case "slice":
            return local_part(x, dim, axis, step.packed)
        case "all_reduce":
            return all_reduce(x, axis)
        case "all_gather":
            whole = all_gather(x, dim, axis, step.packed)
            if step.dim == "feature" and (step.width or step.statistics):  # statistics: scores of a router
                whole = cut_off(whole, dim, step.width or step.statistics, axis.size, step.packed, step.grain)
            return by_part(whole, dim, step.parts, axis.size) if step.parts else whole
        case "reduce_scatter":
            return reduce_scatter(x, dim, axis, step.packed)
        case "all_to_all":
            raise AssertionError("rows for experts are exchanged inside their module")


def local_tokens(x: Tensor, axis: MeshAxis) -> Tensor:
    """This rank's share of the tokens (dim 0), an even one rounded up: the last ranks' may be shorter, or empty."""
    share = -(-len(x) // axis.size)
    return x[axis.coordinate * share : (axis.coordinate + 1) * share]


def all_reduce(x: Tensor, axis: MeshAxis) -> Tensor:
    """The sum over the ranks of ``axis``, of the shape of ``x``; ``x`` itself is left alone."""
    total = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, group=axis.group)
    return total


def all_gather(x: Tensor, dim: int, axis: MeshAxis, packed: int = 1) -> Tensor:
    """The parts of ``x`` along ``dim`` of all ranks of ``axis``, in rank order: (..., f) -> (..., ranks * f)."""
    gathered = x.new_empty((axis.size * x.shape[0], *x.shape[1:]) if x.ndim > 1 else (axis.size * x.shape[0],))
    all_gather_single(gathered, x.contiguous(), group=axis.group)
    dim %= x.ndim
    if dim == 0 and packed == 1:
        return gathered
    parts = torch.unflatten(torch.unflatten(gathered, 0, (axis.size, -1)), dim + 1, (packed, -1))
    # (ranks, ..., packed, share, ...) -> (..., packed, ranks, share, ...)
    return parts.movedim(0, dim + 1).flatten(dim, dim + 2)


def reduce_scatter(x: Tensor, dim: int, axis: MeshAxis, packed: int = 1) -> Tensor:
    """This rank's part along ``dim`` of the sum over the ranks of ``axis``: (..., f) -> (..., f / ranks)."""
    dim %= x.ndim
    parts = torch.unflatten(x, dim, (packed, axis.size, -1)).movedim(dim + 1, 0).contiguous()
    out = parts.new_empty(parts.shape[1:])
    reduce_scatter_single(out, parts.flatten(0, 1), group=axis.group)
    return out.flatten(dim, dim + 1)
