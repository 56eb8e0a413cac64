"""Parameters that a module uses in its own forward, outside the fused ops that have modules: sinks, scans, biases."""

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any

from torch import nn

from autoshard.emit.local import local_parameters, replace_forward


def emit_local(module: nn.Module, owners: Iterable[nn.Module]) -> None:
    """Let ``module`` run with the local shards of the parameters of ``owners`` (modules inside it, or itself)."""
    held_by = list(owners)

    def make(forward: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            with ExitStack() as held:
                for owner in held_by:
                    held.enter_context(local_parameters(owner))
                return forward(*args, **kwargs)

        return run

    replace_forward(module, make)
