"""A matrix on its shard: entry steps, the module's own forward, exit steps, and the bias once.

A bias added while the output is a partial sum would count once per rank, so it is withheld from the forward and added
after the sum, cut to the layout in which the output is delivered. A weight whose rows are unequal parts is whole on
every rank; under choice 0 a rank computes with its rows of every part.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from autoshard.emit.local import local_parameters, map_first_tensor, replace_forward
from autoshard.emit.parts import shares
from autoshard.emit.steps import Axes, run_steps
from autoshard.sharding import Layout, ResolvedOp, Step
from autoshard.sharding.layout import TensorAxes
from autoshard.sharding.padding import PLAIN, Grain


def emit_linear(module: nn.Module, item: ResolvedOp, axes: Axes, tensor_axes: TensorAxes, grain: Grain = PLAIN) -> None:
    """Run ``module`` (weight (out, in), bias (out)) under ``item``.

    Its output lives on ``tensor_axes``, filled up in pieces of ``grain`` if it does not divide.
    """
    partial = item.option is not None and item.option.yields is Layout.PARTIAL
    withheld = frozenset({"bias"} & set(module._parameters)) if partial else frozenset()
    cut: tuple[Step, ...] = ()
    parts: tuple[int, ...] = getattr(item.op, "parts", ())
    if item.delivered is Layout.SHARDED:
        packed = getattr(item.op, "packed", 1)
        cut = (
            Step(kind="slice", axis=tensor_axes.shard, rows="local", width=0, packed=packed, parts=parts, grain=grain),
        )
    rank = axes[tensor_axes.shard]
    rows = shares(parts, rank.coordinate, rank.size) if parts and rank.size > 1 and item.option.choice == 0 else []  # type: ignore[union-attr]

    def make(forward: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Tensor:
            args, kwargs = map_first_tensor(args, kwargs, lambda x: run_steps(x, item.entry[0], axes))
            with local_parameters(module, without=withheld) as local:
                out = _on_rows(module, rows, forward, args, kwargs) if rows else forward(*args, **kwargs)
                out = run_steps(out, item.exit, axes)
            bias = local.get("bias") if withheld else None
            return out if bias is None else out + run_steps(bias, cut, axes)

        return run

    replace_forward(module, make)


def _on_rows(
    module: nn.Module, rows: list[tuple[int, int]], forward: Callable[..., Any], args: Any, kwargs: Any
) -> Tensor:
    """The forward on some rows (start, length) of a whole weight and bias: no copy of them is made."""
    whole = dict(module._parameters)
    outs = []
    for start, length in rows:
        for name, p in whole.items():
            module._parameters[name] = None if p is None else p.narrow(0, start, length)  # type: ignore[assignment]
        outs.append(forward(*args, **kwargs))
    module._parameters.update(whole)
    return torch.cat(outs, -1)
