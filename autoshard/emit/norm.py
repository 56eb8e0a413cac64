"""A norm on its shard. Whole rows: the module's own forward. Split rows: the same, with statistics over all ranks.

The statistics are intercepted where the module computes them: ``mean`` over the last dim (RMSNorm as models write it),
``rms_norm`` and ``layer_norm``. One all_reduce carries the statistics of all rows, in float32 at least.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from autoshard.emit.local import local_parameters, map_first_tensor, replace_forward
from autoshard.emit.steps import Axes, run_steps
from autoshard.sharding import ResolvedOp, Step


class SplitRows(TorchFunctionMode):
    """Turns the row statistics of a norm into statistics over all ranks that share the row."""

    def __init__(self, step: Step, axes: Axes) -> None:
        super().__init__()
        self.step = step
        self.axes = axes
        self.num_reductions = 0

    def over_ranks(self, local_means: Tensor) -> Tensor:
        """Means over the whole rows from means over this rank's equal parts of them."""
        self.num_reductions += 1
        wide = local_means.to(torch.promote_types(local_means.dtype, torch.float32))
        total = run_steps(wide, (self.step,), self.axes) / self.axes[self.step.axis].size
        return total.to(local_means.dtype)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in (torch.Tensor.mean, torch.mean):
            mean: Tensor = func(*args, **kwargs)
            return self.over_ranks(mean)
        if func is F.layer_norm:
            return self.layer_norm(*args, **kwargs)
        if func is F.rms_norm:
            return self.rms_norm(*args, **kwargs)
        return func(*args, **kwargs)

    def layer_norm(
        self,
        input: Tensor,
        normalized_shape: Any,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-5,
    ) -> Tensor:
        """LayerNorm of rows split over ranks: mean and mean of squares in one reduction."""
        assert len(tuple(normalized_shape)) == 1, "a norm over several dims is not split"
        wide = input.to(torch.promote_types(input.dtype, torch.float32))
        local = torch.stack((wide.mean(-1, keepdim=True), wide.square().mean(-1, keepdim=True)))
        mean, square = self.over_ranks(local)
        out: Tensor = ((wide - mean) * torch.rsqrt(square - mean.square() + eps)).to(input.dtype)
        out = out if weight is None else out * weight
        return out if bias is None else out + bias

    def rms_norm(
        self, input: Tensor, normalized_shape: Any, weight: Tensor | None = None, eps: float | None = None
    ) -> Tensor:
        """RMSNorm of rows split over ranks."""
        assert len(tuple(normalized_shape)) == 1, "a norm over several dims is not split"
        wide = input.to(torch.promote_types(input.dtype, torch.float32))
        square = self.over_ranks(wide.square().mean(-1, keepdim=True))
        out = (wide * torch.rsqrt(square + (torch.finfo(input.dtype).eps if eps is None else eps))).to(input.dtype)
        return out if weight is None else out * weight


def emit_norm(module: nn.Module, item: ResolvedOp, axes: Axes) -> None:
    """Run ``module`` (weight and bias of the row's width) under ``item``."""
    option = item.option
    assert option is not None
    statistics = next((s for s in option.internal if axes[s.axis].size > 1), None)

    def make(forward: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Tensor:
            args, kwargs = map_first_tensor(args, kwargs, lambda x: run_steps(x, item.entry[0], axes))
            with local_parameters(module):
                if statistics is None:
                    return run_steps(forward(*args, **kwargs), item.exit, axes)
                with SplitRows(statistics, axes) as rows:
                    out = forward(*args, **kwargs)
            assert rows.num_reductions == 1, f"{item.op.fqn}: {rows.num_reductions} reductions for one norm"
            return run_steps(out, item.exit, axes)

        return run

    replace_forward(module, make)
