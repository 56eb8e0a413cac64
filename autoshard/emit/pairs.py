"""(token, expert) pairs in the order in which a rank's experts compute them."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class SortedPairs:
    """Pairs sorted by local expert, those of other ranks' experts (if any are here) last.

    ``order`` (pairs,) is the pair at each place, ``expert`` its local expert (clamped), ``own`` whether it is ours,
    ``counts`` (e,) the pairs of every local expert.
    """

    order: Tensor
    expert: Tensor
    own: Tensor
    counts: Tensor


def sort_pairs(experts: Tensor, first: int, num_local: int) -> SortedPairs:
    """Sort the expert numbers (t, k) for a rank that has experts ``first`` to ``first + num_local - 1``."""
    local = experts.reshape(-1).long() - first
    local = torch.where((local < 0) | (local >= num_local), num_local, local)
    local, order = torch.sort(local, stable=True)
    counts = torch.zeros(num_local + 1, dtype=torch.long, device=local.device)
    counts.scatter_add_(0, local, torch.ones_like(local))
    return SortedPairs(
        order=order, expert=local.clamp(max=num_local - 1), own=local < num_local, counts=counts[:num_local]
    )
