"""Comparing in float64 although models force float32 here and there (norms, softmax, rotary angles).

A rounding to float32 in the middle of a float64 run leaves errors of 1e-7, which hide a wrong layout that happens to
be small. Lifted, sharded and unsharded models agree to 1e-9 or better, or something is wrong.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

_BIT_VIEWS = (Tensor.view, Tensor.view_as)


class LiftFloat32(TorchFunctionMode):
    """While active, whatever asks for float32 gets float64: ``x.float()``, ``x.to(torch.float32)``, ``dtype=``."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.float:
            return Tensor.double(*args, **(kwargs or {}))
        if func not in _BIT_VIEWS:
            for value in args:
                if value is torch.float32:
                    args = tuple(torch.float64 if a is torch.float32 else a for a in args)
                    break
            if kwargs:
                kwargs = {k: torch.float64 if v is torch.float32 else v for k, v in kwargs.items()}
        return func(*args, **kwargs) if kwargs else func(*args)


def lift_float32() -> LiftFloat32:
    """A context in which forced float32 is float64."""
    return LiftFloat32()


def lift_parameters(model: nn.Module) -> None:
    """Parameters that the model keeps in float32 whatever it is built in (some routers) become float64."""
    for p in model.parameters():
        if p.dtype is torch.float32:
            p.data = p.data.double()
