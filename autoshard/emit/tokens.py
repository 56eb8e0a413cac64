"""A residual whose tokens are split over tp: slicing, summing and gathering tokens, and what modules get to see.

A rank has ``n = ceil(t / tp)`` of the ``t`` tokens of its dp rank, in order, the last ranks' filled up with zeros. The
shape (b, s) of the whole is written down when a whole tensor is split, and given back when the tokens are gathered;
split tokens are (1, n, h), which norms and additions take as well.

A module around experts reshapes their output to the shape of its own whole input. So within it split tokens travel in a
whole tensor, at their own places and zero elsewhere (``carried``), from which they are taken where the module ends.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from autoshard.emit.axes import MeshAxis
from autoshard.emit.calls import all_gather_single, reduce_scatter_single
from autoshard.emit.local import map_first_tensor, replace_forward


def split_tokens(x: Tensor, axis: MeshAxis) -> Tensor:
    """This rank's tokens of a whole tensor (b, s, h), which also says how many there are in all."""
    if x.ndim > 2:
        axis.tokens.leading = tuple(x.shape[:-1])
    return _placed(_own(_padded(x, axis), axis), x, axis)


def sum_tokens(x: Tensor, axis: MeshAxis) -> Tensor:
    """This rank's tokens of the sum over the ranks."""
    rows = _padded(x, axis)
    own = rows.new_empty(len(rows) // axis.size, rows.shape[1])
    reduce_scatter_single(own, rows, group=axis.group)
    return _placed(own, x, axis)


def gather_tokens(x: Tensor, axis: MeshAxis) -> Tensor:
    """All tokens, in the shape they had before they were split."""
    rows = x.reshape(-1, x.shape[-1])
    total = math.prod(axis.tokens.leading)
    assert len(rows) == -(-total // axis.size), f"{tuple(x.shape)} is no share of the tokens {axis.tokens.leading}"
    gathered = rows.new_empty(axis.size * len(rows), rows.shape[1])
    all_gather_single(gathered, rows.contiguous(), group=axis.group)
    return gathered[:total].reshape(*axis.tokens.leading, x.shape[-1])


def split_input(module: nn.Module, axis: MeshAxis) -> None:
    """Let ``module``, the first layer, run on this rank's tokens of its whole input."""

    def make(forward: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            args, kwargs = map_first_tensor(args, kwargs, lambda x: split_tokens(x, axis))
            return forward(*args, **kwargs)

        return run

    replace_forward(module, make)


def carry_inside(module: nn.Module, axis: MeshAxis) -> None:
    """Let ``module`` handle split tokens in whole tensors; its (first) output are this rank's tokens again."""

    def taken(x: Tensor) -> Tensor:
        own = _own(_padded(x, axis), axis)
        return own.reshape(*(1,) * (x.ndim - 2), *own.shape)

    def make(forward: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            axis.tokens.carried = True
            try:
                out = forward(*args, **kwargs)
            finally:
                axis.tokens.carried = False
            return taken(out) if isinstance(out, Tensor) else type(out)((taken(out[0]), *out[1:]))

        return run

    replace_forward(module, make)


def _padded(x: Tensor, axis: MeshAxis) -> Tensor:
    """(..., h) -> (ranks * n, h), zeros at the end."""
    rows = x.reshape(-1, x.shape[-1])
    missing = -len(rows) % axis.size
    return torch.cat((rows, rows.new_zeros(missing, rows.shape[1]))) if missing else rows.contiguous()


def _own(rows: Tensor, axis: MeshAxis) -> Tensor:
    share = len(rows) // axis.size
    return rows[axis.coordinate * share : (axis.coordinate + 1) * share]


def _placed(own: Tensor, whole: Tensor, axis: MeshAxis) -> Tensor:
    """This rank's rows (n, h) in the form in which they travel."""
    if not axis.tokens.carried:
        return own.reshape(*(1,) * (whole.ndim - 2), *own.shape)
    total = math.prod(whole.shape[:-1])
    rows = own.new_zeros(len(own) * axis.size, own.shape[1])
    rows[axis.coordinate * len(own) : (axis.coordinate + 1) * len(own)] = own
    return rows[:total].reshape(whole.shape)
