"""Balanced routing while a model is traced: loops over experts see as many tokens as a balanced router gives each.

Experts written as Python loops ask the data which tokens are theirs (``where(mask)``, ``nonzero``, ``x[mask]``,
``if mask.any()``), and no trace has the data. Within this mode such questions have an answer of fixed size that still
depends on the mask in the graph: tokens * top_k / experts indices, the first in the order of the mask. ``top_k`` and
the number of experts are those of the last ranking. Which experts were hit at all: the first few stand for all, so that
the cost of a trace does not grow with their number. How many tokens each has: equally many, also where the code counts
them to leave an expert out (``if mask.sum() == 0: continue``).
"""

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_RANKINGS = (torch.topk, Tensor.topk)
_NONZERO = (torch.nonzero, Tensor.nonzero, torch.argwhere, Tensor.argwhere)
_TRUTH = (Tensor.__bool__,)
_INTEGER = (Tensor.item, Tensor.__int__, Tensor.__index__)
_COMPARISONS: dict[Any, Callable[[int, Any], bool]] = {
    getattr(owner, name): getattr(operator, name.strip("_"))
    for name in ("eq", "ne", "lt", "le", "gt", "ge", "__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__")
    for owner in (Tensor, torch)
    if hasattr(owner, name)
}
_ITEMS = (Tensor.tolist, Tensor.unbind, torch.unbind)
_VISITED = 4
"""Experts that a loop over those that were hit goes through."""


class _Number(int):
    """An expert's number that also answers what code asks of a one-element tensor."""

    def item(self) -> int:
        """The number."""
        return int(self)

    tolist = item

    def squeeze(self, *_: Any) -> "_Number":
        """Itself."""
        return self

    def __getitem__(self, _: Any) -> "_Number":
        return self


class _Numbers(list[_Number]):
    """All experts, in place of a tensor of those that were hit."""

    def squeeze(self, *_: Any) -> "_Numbers":
        """Itself."""
        return self

    flatten = view = reshape = squeeze

    def tolist(self) -> list[int]:
        """Plain numbers."""
        return [int(n) for n in self]


class BalancedRouting(TorchFunctionMode):
    """See the module's docstring."""

    def __init__(self) -> None:
        super().__init__()
        self._experts, self._top_k, self._tokens = 0, 1, 1
        self._truths: list[tuple[Tensor, bool]] = []
        """Comparisons of a number of tokens, which stay tensors, and what they say."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _RANKINGS:
            out = func(*args, **kwargs)
            self._experts, self._top_k = int(args[0].shape[-1]), int(out[1].shape[-1])
            self._tokens = out[1].numel() // self._top_k
            return out
        if self._experts and func in _NONZERO:
            return self._nonzero(args[0], as_tuple=bool(kwargs.get("as_tuple", False)))
        if self._experts and func is torch.where and len(args) == 1 and not kwargs:
            return self._nonzero(args[0], as_tuple=True)
        if self._experts and func in (Tensor.__getitem__, Tensor.__setitem__):
            return func(args[0], self._indices(args[1]), *args[2:])
        if self._experts and func in _ITEMS and self._counts_experts(args[0]):
            return [_Number(n) for n in self._shares()]
        if self._experts and func in _TRUTH and args[0].device.type == "meta":
            return next((truth for asked, truth in self._truths if asked is args[0]), True)
        if self._experts and func in _INTEGER and _is_count(args[0]):
            return _Number(self._share())
        if func in _COMPARISONS and self._experts and _is_count(args[0]) and isinstance(args[1], (int, float)):
            out = func(*args, **kwargs)
            self._truths.append((out, _COMPARISONS[func](self._share(), args[1])))
            return out
        return func(*args, **kwargs)

    def _indices(self, index: Any) -> Any:
        items = index if isinstance(index, tuple) else (index,)
        if not any(isinstance(i, Tensor) and i.dtype == torch.bool and i.ndim for i in items):
            return index
        found: list[Any] = []
        for item in items:
            masked = isinstance(item, Tensor) and item.dtype == torch.bool and item.ndim
            found.extend(self._nonzero(item, as_tuple=True) if masked else (item,))
        return tuple(found)

    def _counts_experts(self, tensor: Tensor) -> bool:
        """Whether ``tensor`` has one integer per expert: how many tokens it has."""
        return tensor.device.type == "meta" and tensor.shape == (self._experts,) and not tensor.is_floating_point()

    def _share(self) -> int:
        """Tokens of one expert."""
        return max(1, self._tokens * self._top_k // self._experts)

    def _shares(self) -> list[int]:
        """Tokens of every expert, as equal as can be."""
        pairs = self._tokens * self._top_k
        return [pairs * (i + 1) // self._experts - pairs * i // self._experts for i in range(self._experts)]

    def _nonzero(self, mask: Tensor, *, as_tuple: bool) -> Any:
        if mask.ndim == 1 and mask.shape[0] in (self._experts, self._experts + 1) and mask.shape[0] != self._tokens:
            numbers = _Numbers(_Number(i) for i in range(min(_VISITED, self._experts)))
            return (numbers,) if as_tuple else numbers
        count = min(mask.numel(), self._share())
        flat = mask.reshape(-1).to(torch.int32).argsort(descending=True)[:count]
        found = []
        for size in reversed(mask.shape):
            found.append(flat % size)
            flat = flat // size
        found.reverse()
        return tuple(found) if as_tuple else torch.stack(found, dim=1)


def _is_count(tensor: Any) -> bool:
    """Whether ``tensor`` is one integer that only data tells."""
    plain = isinstance(tensor, Tensor) and tensor.device.type == "meta" and tensor.ndim == 0
    return plain and tensor.dtype in (torch.int64, torch.int32)
