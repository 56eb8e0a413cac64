"""Bringing the tokens of all dp ranks, with their routing, to every rank: one all_gather of rows packed as bytes.

A row is hidden state | top_k routing weights (float32, or float64 when activations are) | top_k expert numbers
(int32), which is exactly `Step.row_bytes`.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from autoshard.emit.axes import MeshAxis
from autoshard.emit.steps import all_gather


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutedTokens:
    """Tokens (t, h) with the experts (t, k) chosen for them and their weights (t, k)."""

    hidden: Tensor
    experts: Tensor
    weights: Tensor

    def map(self, change: Callable[[Tensor], Tensor]) -> "RoutedTokens":
        """The same change of all three, along the tokens."""
        return RoutedTokens(hidden=change(self.hidden), experts=change(self.experts), weights=change(self.weights))


def gather_tokens(tokens: RoutedTokens, dp: MeshAxis) -> RoutedTokens:
    """The tokens of all ranks of ``dp`` in rank order: (t, ...) -> (ranks * t, ...)."""
    wide = torch.promote_types(tokens.hidden.dtype, torch.float32)
    parts = (
        tokens.hidden.contiguous(),
        tokens.weights.to(wide).contiguous(),
        tokens.experts.to(torch.int32).contiguous(),
    )
    as_bytes = [part.view(torch.uint8) for part in parts]
    rows = all_gather(torch.cat(as_bytes, dim=1), 0, dp)
    back = torch.split(rows, [part.shape[1] for part in as_bytes], dim=1)
    hidden, weights, experts = (b.contiguous().view(part.dtype) for b, part in zip(back, parts, strict=True))
    return RoutedTokens(
        hidden=hidden, experts=experts.to(tokens.experts.dtype), weights=weights.to(tokens.weights.dtype)
    )


def identify(args: tuple[object, ...], top_k: int) -> RoutedTokens:
    """The arguments of an experts forward by what they are, whatever their order and names."""
    tensors = [a for a in args if isinstance(a, Tensor)]
    experts = [t for t in tensors if not t.is_floating_point() and t.dtype is not torch.bool]
    assert len(experts) == 1 and experts[0].shape[-1] == top_k, (
        "an experts forward without one tensor of expert numbers"
    )
    floats = [t for t in tensors if t.is_floating_point()]
    weights = [t for t in floats if t.shape == experts[0].shape]
    hidden = [t for t in floats if t.shape != experts[0].shape]
    assert len(weights) == 1 and len(hidden) == 1, "an experts forward whose arguments are not hidden, experts, weights"
    return RoutedTokens(hidden=hidden[0], experts=experts[0], weights=weights[0])
