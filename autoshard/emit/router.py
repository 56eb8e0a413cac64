"""A router on its shard: its own forward runs whole, only its matrix is computed on local rows or columns.

The matrix is the one ``linear`` of the forward whose weight has the local shape; its result is gathered (0) or summed
(1) on the spot, so that softmax, top-k and whatever a family adds see the scores of every expert.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from autoshard.emit.local import LocalWidth, local_parameters, map_first_tensor, replace_forward
from autoshard.emit.steps import Axes, run_steps
from autoshard.ir import Router
from autoshard.sharding import ResolvedOp


class WholeScores(TorchFunctionMode):
    """Completes the scores of the router's matrix over the ranks that share it."""

    def __init__(self, weight: Tensor, item: ResolvedOp, axes: Axes) -> None:
        super().__init__()
        self.shape = weight.shape
        self.item = item
        self.axes = axes
        self.num_hits = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is not F.linear or args[1].shape != self.shape:
            return func(*args, **kwargs)
        self.num_hits += 1
        option = self.item.option
        assert option is not None
        bias = args[2] if len(args) > 2 else kwargs.get("bias")
        if option.choice == 1:
            scores = self.whole(func(args[0], args[1]))
            return scores if bias is None else scores + bias
        return self.whole(func(args[0], args[1], bias))

    def whole(self, scores: Tensor) -> Tensor:
        """Scores of every expert from this rank's experts, or from its part of the sum; sent in float32 at least."""
        assert self.item.option is not None
        wide = scores.to(torch.promote_types(scores.dtype, torch.float32))
        return run_steps(wide, self.item.option.internal, self.axes).to(scores.dtype)


def emit_router(module: nn.Module, item: ResolvedOp, axes: Axes) -> None:
    """Run ``module``, the owner of the weight (experts, hidden), under ``item``."""
    option = item.option
    assert option is not None and isinstance(item.op, Router)
    hidden = item.op.hidden.size

    def make(forward: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            args, kwargs = map_first_tensor(args, kwargs, lambda x: run_steps(x, item.entry[0], axes))
            with local_parameters(module) as local:
                if not any(axes[s.axis].size > 1 for s in option.internal):
                    return forward(*args, **kwargs)
                width = local["weight"].shape[1]
                with LocalWidth(full=hidden, local=width), WholeScores(local["weight"], item, axes) as scores:
                    out = forward(*args, **kwargs)
            assert scores.num_hits == 1, f"{item.op.fqn}: {scores.num_hits} matrices found in a router"
            return out

        return run

    replace_forward(module, make)
