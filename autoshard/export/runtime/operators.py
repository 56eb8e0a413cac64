"""Fused operators: each gives its module a forward that brings the input in, runs on local shards, and passes it on."""

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.overrides import TorchFunctionMode

from autoshard.export.runtime.moves import Axes, Axis, KeepWidth, Moves, change_first, go, own_rows


def linear(
    model: nn.Module,
    at: str,
    axes: Axes,
    before: Moves = (),
    after: Moves = (),
    partial: bool = False,
    cut: Moves = (),
    rows: tuple[int, ...] = (),
    rows_over: str = "tp",
) -> None:
    """A matrix; a bias is added once, after a partial sum is complete, cut like the output.

    A weight of unequal parts ``rows`` is whole on every rank, which computes with its rows of each part.
    """
    module = model.get_submodule(at)
    forward = module.forward

    def run(*args: Any, **kwargs: Any) -> Tensor:
        args, kwargs = change_first(args, kwargs, lambda x: go(x, before, axes))
        held = dict(module._parameters)
        bias = held.get("bias") if partial else None
        if bias is not None:
            module._parameters["bias"] = None
        for name, p in module._parameters.items() if rows else ():
            whole = p.to_local() if isinstance(p, DTensor) else p
            module._parameters[name] = None if whole is None else own_rows(whole, 0, rows, axes[rows_over])  # type: ignore[assignment]
        try:
            out = go(forward(*args, **kwargs), after, axes)
        finally:
            module._parameters.update(held)
        return out if bias is None else out + go(bias.to_local(), cut, axes)  # type: ignore[attr-defined]

    module.forward = run


def embedding(model: nn.Module, at: str, axes: Axes, after: Moves = (), vocabulary_over: str | None = None) -> None:
    """A token table; with part of the vocabulary a rank adds zeros for the tokens it has not."""
    module: Any = model.get_submodule(at)
    forward = module.forward

    def run(ids: Tensor) -> Tensor:
        if vocabulary_over is None:
            return go(forward(ids), after, axes)
        rows = module.weight.to_local().shape[0]
        ids = ids - axes[vocabulary_over].coordinate * rows
        absent = (ids < 0) | (ids >= rows)
        padding, module.padding_idx = module.padding_idx, None
        try:
            out = forward(ids.clamp(0, rows - 1))
        finally:
            module.padding_idx = padding
        return go(out.masked_fill(absent[..., None], 0), after, axes)

    module.forward = run


def attention(model: nn.Module, at: str, heads: tuple[int, int], kv_heads: tuple[int, int]) -> None:
    """Tell an attention module its (whole, local) numbers of heads."""
    module: Any = model.get_submodule(at)
    for names, (whole, local) in (
        (("num_heads", "num_attention_heads"), heads),
        (("num_key_value_heads", "num_kv_heads"), kv_heads),
    ):
        for name in names:
            if getattr(module, name, None) == whole:
                setattr(module, name, local)
    if hasattr(module, "num_key_value_groups"):
        module.num_key_value_groups = heads[1] // kv_heads[1]


class SharedRows(TorchFunctionMode):
    """Statistics of norms whose rows lie on several ranks: one all_reduce, in float32 at least."""

    def __init__(self, axis: Axis) -> None:
        super().__init__()
        self.axis = axis

    def over_ranks(self, x: Tensor) -> Tensor:
        """The mean over the ranks."""
        wide = x.to(torch.promote_types(x.dtype, torch.float32), copy=True).contiguous()
        dist.all_reduce(wide, group=self.axis.group)
        return (wide / self.axis.size).to(x.dtype)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Complete means, and the norms torch knows."""
        kwargs = kwargs or {}
        if func in (Tensor.mean, torch.mean):
            return self.over_ranks(func(*args, **kwargs))
        if func in (F.rms_norm, F.layer_norm):
            return self.norm(func is F.layer_norm, *args, **kwargs)
        return func(*args, **kwargs)

    def norm(
        self,
        centred: bool,
        input: Tensor,
        normalized_shape: Any,  # noqa: ARG002
        weight: Any = None,
        bias: Any = None,
        eps: Any = None,
    ) -> Tensor:
        """``layer_norm`` or ``rms_norm`` of split rows."""
        if not centred and bias is not None:
            bias, eps = None, bias  # rms_norm's fourth argument is eps
        eps = (1e-5 if centred else torch.finfo(input.dtype).eps) if eps is None else eps
        x = input.to(torch.promote_types(input.dtype, torch.float32))
        mean, square = self.over_ranks(torch.stack((x.mean(-1, keepdim=True), x.square().mean(-1, keepdim=True))))
        out = (x - mean) * torch.rsqrt(square - mean.square() + eps) if centred else x * torch.rsqrt(square + eps)
        out = out.to(input.dtype) if weight is None else out.to(input.dtype) * weight
        return out if bias is None else out + bias


def norm(
    model: nn.Module, at: str, axes: Axes, before: Moves = (), after: Moves = (), rows_over: str | None = None
) -> None:
    """A norm, with its rows on one rank or over ``rows_over``."""
    module = model.get_submodule(at)
    forward = module.forward

    def run(*args: Any, **kwargs: Any) -> Tensor:
        args, kwargs = change_first(args, kwargs, lambda x: go(x, before, axes))
        if rows_over is None:
            return go(forward(*args, **kwargs), after, axes)
        with SharedRows(axes[rows_over]):
            out = forward(*args, **kwargs)
        return go(out, after, axes)

    module.forward = run


class WholeScores(TorchFunctionMode):
    """Completes the scores of a router's matrix, the one ``linear`` with a weight of the local shape."""

    def __init__(self, shape: torch.Size, moves: Moves, axes: Axes, partial: bool) -> None:
        super().__init__()
        self.shape, self.moves, self.axes, self.partial = shape, moves, axes, partial

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Complete the scores; a bias is added to a complete sum."""
        kwargs = dict(kwargs or {})
        if func is not F.linear or args[1].shape != self.shape:
            return func(*args, **kwargs)
        bias = args[2] if len(args) > 2 else kwargs.get("bias")
        if self.partial:
            scores = self.whole(func(args[0], args[1]))
            return scores if bias is None else scores + bias
        return self.whole(func(args[0], args[1], bias))

    def whole(self, scores: Tensor) -> Tensor:
        """Complete scores, sent in float32 at least."""
        wide = scores.to(torch.promote_types(scores.dtype, torch.float32))
        return go(wide, self.moves, self.axes).to(scores.dtype)


def router(
    model: nn.Module, at: str, axes: Axes, hidden: int, before: Moves = (), inside: Moves = (), partial: bool = False
) -> None:
    """A router; its matrix may be split, its choice of experts sees all scores."""
    module: Any = model.get_submodule(at)
    forward = module.forward

    def run(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = change_first(args, kwargs, lambda x: go(x, before, axes))
        if not inside:
            return forward(*args, **kwargs)
        shape = module.weight.to_local().shape
        with KeepWidth(hidden, shape[1]), WholeScores(shape, inside, axes, partial):
            return forward(*args, **kwargs)

    module.forward = run


def keep_width(model: nn.Module, at: str, before: int, after: int) -> None:
    """Let a module around experts reshape their output, ``after`` wide, as if it were ``before`` wide."""
    module = model.get_submodule(at)
    forward = module.forward

    def run(*args: Any, **kwargs: Any) -> Any:
        with KeepWidth(before, after):
            return forward(*args, **kwargs)

    module.forward = run
