"""Running a module's own forward on the local shards of its parameters."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.overrides import TorchFunctionMode


@contextmanager
def local_parameters(module: nn.Module, without: frozenset[str] = frozenset()) -> Iterator[dict[str, Tensor]]:
    """Within it the module's own parameters (not its children's) are local shards, those in ``without`` are None.

    Yields the local shards by name, those withheld included.
    """
    held = dict(module._parameters)
    local = {n: p.to_local() if isinstance(p, DTensor) else p for n, p in held.items() if p is not None}
    for name, tensor in local.items():
        module._parameters[name] = None if name in without else tensor  # type: ignore[assignment]
    try:
        yield local
    finally:
        module._parameters.update(held)


def replace_forward(module: nn.Module, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Give ``module`` the forward that ``make`` builds from its present one."""
    module.forward = make(module.forward)


def map_first_tensor(
    args: tuple[Any, ...], kwargs: dict[str, Any], change: Callable[[Tensor], Tensor]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a forward with its first tensor changed: the activation, in every model we know."""
    for i, value in enumerate(args):
        if isinstance(value, Tensor):
            return (*args[:i], change(value), *args[i + 1 :]), kwargs
    for name, value in kwargs.items():
        if isinstance(value, Tensor):
            return args, {**kwargs, name: change(value)}
    raise AssertionError("a forward without a tensor argument")


class LocalWidth(TorchFunctionMode):
    """Lets a forward that reshapes to the width of the whole model do so on a shard.

    A ``view`` or ``reshape`` of a tensor whose last dim is ``local`` into a shape whose last dim is ``full`` means
    "keep the feature dim": it keeps ``local``. Without this, ``reshape(-1, hidden)`` of a hidden-sharded tensor would
    silently mix tokens.
    """

    def __init__(self, *, full: int, local: int) -> None:
        super().__init__()
        self.full = full
        self.local = local

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (Tensor.view, Tensor.reshape, torch.reshape) and args[0].shape[-1:] == (self.local,):
            flat = len(args) == 2 and isinstance(args[1], list | tuple)
            shape = tuple(args[1]) if flat else tuple(args[1:])
            if shape and shape[-1] == self.full:
                args = (args[0], (*shape[:-1], self.local))
        return func(*args, **(kwargs or {}))
