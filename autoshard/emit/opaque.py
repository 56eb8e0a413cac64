"""Something that was not understood: it runs as it is, on whole inputs and whole parameters."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from autoshard.emit.local import local_parameters, map_first_tensor, replace_forward
from autoshard.emit.steps import Axes, run_steps
from autoshard.sharding import ResolvedOp


def emit_opaque(module: nn.Module, item: ResolvedOp, axes: Axes) -> None:
    """Run ``module`` and its children replicated, between the steps of ``item``."""
    owners = [m for m in module.modules() if any(isinstance(p, DTensor) for p in m._parameters.values())]
    steps = item.entry[0] if item.entry else ()

    def make(forward: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            args, kwargs = map_first_tensor(args, kwargs, lambda x: run_steps(x, steps, axes))
            with ExitStack() as held:
                for owner in owners:
                    held.enter_context(local_parameters(owner))
                out = forward(*args, **kwargs)
            return run_steps(out, item.exit, axes) if isinstance(out, Tensor) else out

        return run

    replace_forward(module, make)
