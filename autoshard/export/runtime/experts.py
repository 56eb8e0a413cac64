"""Routed experts: each rank runs its own experts on the rows that are theirs."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autoshard.export.runtime.moves import Axes, Axis, Moves, gather, go, local_shards


@dataclass(frozen=True)
class Matrix:
    """One matrix of all experts: its parameters, how it lies in memory, and the moves before and after it."""

    weight: str
    bias: str | None = None
    transposed: bool = False
    partial: bool = False
    before: Moves = ()
    after: Moves = ()
    bias_cut: Moves = ()

    def run(self, module: nn.Module, rows: Tensor, pairs: "Pairs", axes: Axes, add_bias: bool) -> Tensor:
        """(pairs, in) -> (pairs, out) of sorted rows, with the moves around it."""
        weight = module._parameters[self.weight]
        assert weight is not None
        rows = go(rows, self.before, axes)
        out = grouped(rows, weight if self.transposed else weight.transpose(1, 2), pairs.counts)
        bias = module._parameters.get(self.bias or "")
        each = None if bias is None or not add_bias else bias[pairs.expert]
        if self.partial:
            out = go(out, self.after, axes)
            return out if each is None else out + go(each, self.bias_cut, axes)
        return go(out if each is None else out + each, self.after, axes)


@dataclass(frozen=True)
class Pairs:
    """(token, expert) pairs sorted by this rank's experts, those of other ranks last."""

    order: Tensor
    expert: Tensor
    own: Tensor
    counts: Tensor


def sort_pairs(experts: Tensor, first: int, count: int) -> Pairs:
    """Sort the chosen experts (tokens, k) for a rank with ``count`` experts from ``first`` on."""
    mine = experts.flatten().long() - first
    mine = torch.where((mine >= 0) & (mine < count), mine, count)
    mine, order = mine.sort(stable=True)
    return Pairs(order, mine.clamp(max=count - 1), mine < count, torch.bincount(mine, minlength=count + 1)[:count])


def grouped(rows: Tensor, weight: Tensor, counts: Tensor) -> Tensor:
    """One product per expert over sorted rows; rows after the last expert's are undefined."""
    aligned = all(n * rows.element_size() % 16 == 0 for n in weight.shape[1:])
    if rows.is_cuda and rows.dtype is torch.bfloat16 and aligned:
        return F.grouped_mm(rows, weight, offs=counts.cumsum(0).to(torch.int32))
    out, start = rows.new_zeros(rows.shape[0], weight.shape[2]), 0
    for expert, count in enumerate(counts.tolist()):
        out[start : start + count] = rows[start : start + count] @ weight[expert]
        start += count
    return out


def gather_routed(tensors: tuple[Tensor, Tensor, Tensor], axis: Axis) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden states, chosen experts and their weights of all ranks: one all_gather of rows packed as bytes."""
    hidden, chosen, weights = tensors
    wide = torch.promote_types(hidden.dtype, torch.float32)
    parts = (hidden.contiguous(), weights.to(wide).contiguous(), chosen.to(torch.int32).contiguous())
    rows = [part.view(torch.uint8) for part in parts]
    every = torch.split(gather(torch.cat(rows, 1), 0, axis, 1), [r.shape[1] for r in rows], 1)
    found = [e.contiguous().view(part.dtype) for e, part in zip(every, parts, strict=True)]
    return found[0], found[2].to(chosen.dtype), found[1].to(weights.dtype)


def experts(
    model: nn.Module,
    at: str,
    axes: Axes,
    top_k: int,
    up: Matrix,
    down: Matrix,
    *,
    gated: bool = False,
    interleaved: bool = False,
    share_of: str | None = None,
    tokens_over: str | None = None,
    after_gather: Moves = (),
    send: Callable[..., Any] | None = None,
    num_experts: int = 0,
    after_activation: Moves = (),
    combine: Moves = (),
    deliver: Moves = (),
) -> None:
    """Routed experts on this rank's shard.

    Tokens of all ranks of ``tokens_over`` are gathered, or with ``send`` exchanged with the ranks of their experts
    (before, a rank takes its share of them over ``share_of``). Own experts run on own rows; shares are summed on the
    way back.
    """
    module = model.get_submodule(at)
    gate = getattr(module, "_apply_gate", None) if gated else None
    act = next((c for c in module.children() if not list(c.parameters())), None)

    def activate(rows: Tensor) -> Tensor:
        if gate is not None:
            return gate(rows)  # type: ignore[no-any-return]
        assert act is not None
        if not gated:
            return act(rows)  # type: ignore[no-any-return]
        first, second = (rows[..., ::2], rows[..., 1::2]) if interleaved else rows.chunk(2, -1)
        return act(first) * second  # type: ignore[no-any-return]

    def run(*args: Any, **kwargs: Any) -> Tensor:
        tensors = [a for a in (*args, *kwargs.values()) if isinstance(a, Tensor)]
        chosen = next(t for t in tensors if not t.is_floating_point() and t.dtype is not torch.bool)
        weights = next(t for t in tensors if t.is_floating_point() and t.shape == chosen.shape)
        given = next(t for t in tensors if t.is_floating_point() and t.shape != chosen.shape)
        hidden = given.reshape(-1, given.shape[-1])
        num_tokens, share = hidden.shape[0], hidden.shape[0]
        if share_of is not None:
            share = -(-num_tokens // axes[share_of].size)
            mine = slice(axes[share_of].coordinate * share, (axes[share_of].coordinate + 1) * share)
            hidden, chosen, weights = hidden[mine], chosen[mine], weights[mine]
        if tokens_over is not None:
            hidden, chosen, weights = gather_routed((hidden, chosen, weights), axes[tokens_over])
            share *= axes[tokens_over].size
        hidden = go(hidden, after_gather, axes)
        back = None
        if send is not None:
            rows, pairs, back = send(hidden, chosen, num_experts, axes["ep"])
        with local_shards([module]):
            if back is None:
                count = module._parameters[up.weight].shape[0]  # type: ignore[union-attr]
                pairs = sort_pairs(chosen, axes["ep"].coordinate * count, count)
                rows = hidden[pairs.order // top_k]
            rows = up.run(module, rows, pairs, axes, True)
            rows = go(activate(rows), after_activation, axes)
            rows = down.run(module, rows, pairs, axes, not down.partial or axes["etp"].coordinate == 0)
        if back is None:
            rows = rows.masked_fill(~pairs.own[:, None], 0)
            results = torch.empty_like(rows).index_copy_(0, pairs.order, rows)
        else:
            results = back(rows)
        results = results * weights.reshape(-1)[:, None]
        out = torch.unflatten(results, 0, (-1, top_k)).sum(1).to(given.dtype)
        if send is not None and out.shape[0] < share:  # a share of the last ranks may be shorter, or empty
            out = torch.cat((out, out.new_zeros(share - out.shape[0], out.shape[1])))
        out = go(go(out, combine, axes)[:num_tokens], deliver, axes)
        return out.reshape(*given.shape[:-1], out.shape[-1])

    module.forward = run
