"""A matrix on its shard: entry steps, the module's own forward, exit steps, and the bias once.

A bias added while the output is a partial sum would count once per rank, so it is withheld from the forward and added
after the sum, cut to the layout in which the output is delivered.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from autoshard.emit.local import local_parameters, map_first_tensor, replace_forward
from autoshard.emit.steps import Axes, run_steps
from autoshard.sharding import Layout, ResolvedOp, Step
from autoshard.sharding.layout import TensorAxes


def emit_linear(module: nn.Module, item: ResolvedOp, axes: Axes, tensor_axes: TensorAxes) -> None:
    """Run ``module`` (weight (out, in), bias (out)) under ``item``; its output lives on ``tensor_axes``."""
    partial = item.option is not None and item.option.yields is Layout.PARTIAL
    withheld = frozenset({"bias"} & set(module._parameters)) if partial else frozenset()
    cut: tuple[Step, ...] = ()
    if item.delivered is Layout.SHARDED:
        packed = getattr(item.op, "packed", 1)
        cut = (Step(kind="slice", axis=tensor_axes.shard, rows="local", width=0, packed=packed),)

    def make(forward: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Tensor:
            args, kwargs = map_first_tensor(args, kwargs, lambda x: run_steps(x, item.entry[0], axes))
            with local_parameters(module, without=withheld) as local:
                out = run_steps(forward(*args, **kwargs), item.exit, axes)
            bias = local.get("bias") if withheld else None
            return out if bias is None else out + run_steps(bias, cut, axes)

        return run

    replace_forward(module, make)
