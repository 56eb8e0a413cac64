"""Exchanging (token, expert) rows with the ranks of their experts: counts, rows, and their results on the way back.

The counts of every expert's rows go first (an even all_to_all of int32), so that a rank knows what it gets and whose it
is; then the rows, sorted by expert, in parts of unequal size; then the results, in the same parts, back to where the
weights are. A rank without tokens sends nothing and still takes part.
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from autoshard._torch import is_fake
from autoshard.emit.axes import MeshAxis
from autoshard.emit.dispatch import RoutedTokens
from autoshard.emit.pairs import SortedPairs


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """Rows that arrived, and how their results go back.

    ``rows`` (arrived, h) are sorted by local expert as ``pairs`` says, whose ``order`` is the place each arrived in.
    ``order`` (sent,) is the (token, expert) pair at each place sent; ``sent`` and ``arrived`` count rows by rank.
    """

    rows: Tensor
    pairs: SortedPairs
    order: Tensor
    sent: list[int]
    arrived: list[int]
    axis: MeshAxis

    def back(self, results: Tensor) -> Tensor:
        """Results of ``rows`` in their order -> those of this rank's pairs (t k, ...), token by token."""
        placed = torch.empty_like(results)
        placed[self.pairs.order] = results
        returned = all_to_all(placed, self.arrived, self.sent, self.axis)
        shares = torch.empty_like(returned)
        shares[self.order] = returned
        return shares


def exchange(tokens: RoutedTokens, num_experts: int, axis: MeshAxis) -> Exchange:
    """Send every token (t, h) to the ranks of ``axis`` that have its experts, ``num_experts / ranks`` each in order."""
    chosen = tokens.experts.reshape(-1).long()
    _, order = torch.sort(chosen, stable=True)
    counts = torch.zeros(num_experts, dtype=torch.int32, device=chosen.device)
    counts.scatter_add_(0, chosen, torch.ones_like(chosen, dtype=torch.int32))
    arriving = torch.zeros_like(counts)
    dist.all_to_all_single(arriving, counts, group=axis.group)
    sent, arrived = _sizes(counts, arriving, len(chosen), axis)
    rows = all_to_all(tokens.hidden[order // tokens.experts.shape[1]], sent, arrived, axis)
    num_local = num_experts // axis.size
    experts = torch.arange(num_local, device=chosen.device).repeat(axis.size)
    of = torch.repeat_interleave(experts, arriving.long(), output_size=sum(arrived))
    expert, place = torch.sort(of, stable=True)
    by_expert = torch.unflatten(arriving, 0, (axis.size, num_local)).sum(0)
    pairs = SortedPairs(order=place, expert=expert, own=torch.ones_like(expert, dtype=torch.bool), counts=by_expert)
    return Exchange(rows=rows[place], pairs=pairs, order=order, sent=sent, arrived=arrived, axis=axis)


def all_to_all(rows: Tensor, sent: list[int], arrived: list[int], axis: MeshAxis) -> Tensor:
    """``rows`` in parts of ``sent`` rows, one for each rank of ``axis`` -> the parts of ``arrived`` rows from each."""
    out = rows.new_empty((sum(arrived), *rows.shape[1:]))
    dist.all_to_all_single(out, rows.contiguous(), arrived, sent, group=axis.group)
    return out


def _sizes(counts: Tensor, arriving: Tensor, num_pairs: int, axis: MeshAxis) -> tuple[list[int], list[int]]:
    """Rows sent to and arriving from every rank: one wait for the device. Without numbers (fake tensors), balanced."""
    if counts.is_meta or is_fake(counts):
        even = [num_pairs // axis.size + (i < num_pairs % axis.size) for i in range(axis.size)]
        return even, even
    both = torch.unflatten(torch.stack((counts, arriving)), 1, (axis.size, -1)).sum(2).tolist()
    return both[0], both[1]
