"""Exchanging (token, expert) rows with the ranks of their experts: how many first, then the rows, then the results."""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from autoshard.export.runtime.experts import Pairs
from autoshard.export.runtime.moves import Axis


def send_rows(rows: Tensor, sent: list[int], arriving: list[int], axis: Axis) -> Tensor:
    """``rows`` in parts of ``sent``, one for each rank -> the parts of ``arriving`` rows from each."""
    out = rows.new_empty((sum(arriving), *rows.shape[1:]))
    dist.all_to_all_single(out, rows.contiguous(), arriving, sent, group=axis.group)
    return out


def send_to_experts(
    hidden: Tensor, chosen: Tensor, num_experts: int, axis: Axis
) -> tuple[Tensor, Pairs, Callable[[Tensor], Tensor]]:
    """Rows of this rank's experts, sorted by expert, and the way their results go back to where the tokens are."""
    flat = chosen.reshape(-1).long()
    order = flat.argsort(stable=True)
    counts = torch.zeros(num_experts, dtype=torch.int32, device=flat.device)
    counts.scatter_add_(0, flat, torch.ones_like(flat, dtype=torch.int32))
    arriving = torch.zeros_like(counts)
    dist.all_to_all_single(arriving, counts, group=axis.group)
    sent, arrived = torch.unflatten(torch.stack((counts, arriving)), 1, (axis.size, -1)).sum(2).tolist()
    rows = send_rows(hidden[order // chosen.shape[1]], sent, arrived, axis)
    own = num_experts // axis.size
    of = torch.arange(own, device=flat.device).repeat(axis.size)
    expert, place = torch.repeat_interleave(of, arriving.long(), output_size=sum(arrived)).sort(stable=True)
    by_expert = torch.unflatten(arriving, 0, (axis.size, own)).sum(0)

    def back(results: Tensor) -> Tensor:
        placed = torch.empty_like(results).index_copy_(0, place, results)
        returned = send_rows(placed, arrived, sent, axis)
        return torch.empty_like(returned).index_copy_(0, order, returned)

    return rows[place], Pairs(place, expert, torch.ones_like(expert, dtype=torch.bool), by_expert), back
