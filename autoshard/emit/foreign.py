"""What stands for the modules of other pipeline stages: nothing is held and nothing is computed.

The model's own forward runs on every rank, so that masks, positions and caches come out as the model makes them; only
its layers and its ends are somebody else's. In place of what is missing flows a tensor of the right shape that is not
a number anywhere and takes the memory of one element: whatever reads it by mistake shows.
"""

from typing import Any

import torch
from torch import Tensor, nn

from autoshard.errors import UnsupportedModelError

_PLAIN = (bool, int, float, str, tuple, type(None))


def nothing(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """A tensor of ``shape`` without a value, in the memory of one element."""
    return torch.full((), float("nan"), dtype=dtype, device=device).expand(shape)


def residual_argument(args: tuple[Any, ...], kwargs: dict[str, Any], width: int, where: str) -> Tensor:
    """The residual stream among the arguments of a layer: the first floating tensor that is ``width`` wide.

    Raises:
        UnsupportedModelError: when there is none.
    """
    for value in (*args, *kwargs.values()):
        if isinstance(value, Tensor) and value.is_floating_point() and value.ndim > 1 and value.shape[-1] == width:
            return value
    raise UnsupportedModelError(f"{where}: no argument is the residual stream (width {width}), so it cannot be staged")


class ForeignLayer(nn.Module):
    """A layer of another stage: gives back the residual, and lets a transformers cache count its tokens.

    Models read the length of the past off whichever layer of the cache, and the layers of a cache that this stage
    never fills must agree with those it does. Plain attributes (kind of attention ...) are kept, for models read them.
    """

    def __init__(self, layer: nn.Module, width: int, where: str) -> None:
        super().__init__()
        for name, value in vars(layer).items():
            if not name.startswith("_") and isinstance(value, _PLAIN):
                setattr(self, name, value)
        self.training = False
        self._width = width
        self._where = where
        named = (getattr(m, "layer_idx", None) for m in layer.modules())
        indices = {index for index in named if isinstance(index, int)}
        self._cache_layer: int | None = indices.pop() if len(indices) == 1 else None

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """The residual (..., width) among the arguments, untouched."""
        hidden = residual_argument(args, kwargs, self._width, self._where)
        for value in (*args, *kwargs.values()):
            if self._cache_layer is not None and is_transformers_cache(value):
                count_tokens(value, self._cache_layer, hidden)
        return hidden


class ForeignModule(nn.Module):
    """A module of another stage's prologue or epilogue: something of its output's shape.

    ``weight`` is empty: models ask it for its device (Llama-4 does, of the embedding) and its dtype.
    """

    def __init__(self, width: int, dtype: torch.dtype, device: str) -> None:
        super().__init__()
        self.width = width
        self.dtype = dtype
        self.weight = torch.empty(0, dtype=dtype, device=device)

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Ids (...) or features (..., in) -> nothing (..., width)."""
        first = next(v for v in (*args, *kwargs.values()) if isinstance(v, Tensor))
        leading = first.shape[:-1] if first.is_floating_point() else first.shape
        return nothing((*leading, self.width), self.dtype, first.device)


def is_transformers_cache(value: Any) -> bool:
    """Whether ``value`` is a cache with transformers' interface."""
    return all(callable(getattr(value, name, None)) for name in ("update", "get_seq_length", "get_mask_sizes"))


def count_tokens(cache: Any, layer: int, like: Tensor) -> None:
    """Let layer ``layer`` of a transformers cache count the tokens of ``like`` (b, s, ...): two elements each."""
    entry: Any = cache.layers[layer] if layer < len(cache.layers) else None
    states = getattr(entry, "has_previous_state", None)
    if isinstance(states, dict):
        entry.has_previous_state = dict.fromkeys(states, True)  # a recurrent state keeps no tokens
    if entry is None or callable(getattr(entry, "get_seq_length", None)):
        key = torch.zeros((1, 1, like.shape[1], 1), dtype=like.dtype, device=like.device)
        cache.update(key, key, layer)
