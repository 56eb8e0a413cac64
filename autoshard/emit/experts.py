"""Routed experts on their shard: dispatch, own experts on own rows, combine. The module's forward is replaced by ours.

Shapes are static: every rank handles all ``tokens of all dp ranks x top_k`` pairs, sorted by expert, and computes those
of its own experts; the others' rows carry undefined numbers through and are zeroed before they are summed. So the steps
in between move what the plan lists, and nothing depends on the data.

Shape letters: t tokens of all dp ranks, k experts per token, e local experts, h hidden, f intermediate.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from autoshard.emit.dispatch import RoutedTokens, gather_tokens, identify
from autoshard.emit.grouped import grouped_linear
from autoshard.emit.local import local_parameters, replace_forward
from autoshard.emit.steps import Axes, run_step, run_steps
from autoshard.errors import UnsupportedModelError
from autoshard.ir import Activation, ExpertsLinear
from autoshard.sharding import Layout, ResolvedOp, Step


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsItems:
    """The fused ops of one experts module under a strategy."""

    up: ResolvedOp
    act: ResolvedOp
    down: ResolvedOp


@dataclass(frozen=True, slots=True, kw_only=True)
class SortedPairs:
    """(token, expert) pairs sorted by local expert, those of other ranks' experts last.

    ``order`` (t k,) is the pair at each place, ``expert`` its local expert (clamped), ``own`` whether it is ours,
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


class ExpertsForward:
    """The forward of an experts module under a strategy."""

    def __init__(self, module: nn.Module, items: ExpertsItems, axes: Axes) -> None:
        self.module = module
        self.items = items
        self.axes = axes
        self.activate = activation_of(module, items)

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
        """(..., h) hidden states, (t, k) experts and (t, k) weights in any order -> (..., delivered h)."""
        up, down = self.items.up, self.items.down
        assert isinstance(up.op, ExpertsLinear)
        tokens = identify((*args, *kwargs.values()), up.op.top_k)
        leading = tokens.hidden.shape[:-1]
        hidden = tokens.hidden.reshape(-1, tokens.hidden.shape[-1])
        tokens = self.dispatch(RoutedTokens(hidden=hidden, experts=tokens.experts, weights=tokens.weights))
        with local_parameters(self.module) as local:
            num_local = next(iter(local.values())).shape[0]
            pairs = sort_pairs(tokens.experts, self.axes["ep"].coordinate * num_local, num_local)
            rows = self.matrix(up, local, tokens.hidden[pairs.order // up.op.top_k], pairs)
            rows = self.activate(run_steps(rows, self.items.act.exit, self.axes))
            rows = self.matrix(down, local, run_steps(rows, down.entry[0], self.axes), pairs)
        rows = torch.where(pairs.own[:, None], rows, 0) * tokens.weights.reshape(-1)[pairs.order, None]
        shares = torch.empty_like(rows)
        shares[pairs.order] = rows
        total = torch.unflatten(shares, 0, (-1, up.op.top_k)).sum(1).to(hidden.dtype)
        total = run_steps(total, down.exit, self.axes)
        return total.reshape(*leading, total.shape[-1])

    def dispatch(self, tokens: RoutedTokens) -> RoutedTokens:
        """Tokens (of all dp ranks) in the layout that the up matrix reads."""
        for step in self.items.up.entry[0]:
            if self.axes[step.axis].size == 1:
                continue
            if step.indices:
                tokens = gather_tokens(tokens, self.axes[step.axis])
            else:
                hidden = run_step(tokens.hidden, step, self.axes[step.axis])
                tokens = RoutedTokens(hidden=hidden, experts=tokens.experts, weights=tokens.weights)
        return tokens

    def matrix(self, item: ResolvedOp, local: dict[str, Tensor], rows: Tensor, pairs: SortedPairs) -> Tensor:
        """One experts matrix on sorted rows (t k, in) -> (t k, out), bias added once; up's exit steps included."""
        op, option = item.op, item.option
        assert isinstance(op, ExpertsLinear) and option is not None
        named = {p.role: local[p.fqn.rsplit(".", 1)[1]] for p in op.params}
        weight = named["weight"] if op.transposed else named["weight"].transpose(1, 2)
        out = grouped_linear(rows, weight, pairs.counts)
        bias = None if "bias" not in named else named["bias"][pairs.expert]
        partial = option.yields is Layout.PARTIAL
        if op.stage == "down":
            # The combine sums the shares of all etp ranks when they are partial: the bias counts on the first only.
            return out if bias is None or (partial and self.axes["etp"].coordinate > 0) else out + bias
        if bias is not None and not partial:
            out = out + bias
        out = run_steps(out, item.exit, self.axes)
        if bias is None or not partial:
            return out
        packed = 1 if op.interleaved else op.packed
        cut = Step(kind="slice", axis="etp", rows="pairs", width=0, packed=packed)
        return out + (run_steps(bias, (cut,), self.axes) if item.delivered is Layout.SHARDED else bias)


def activation_of(module: nn.Module, items: ExpertsItems) -> Callable[[Tensor], Tensor]:
    """What the module does between its matrices: its own gating function, or its one parameter-free child.

    Raises:
        UnsupportedModelError: when it has neither.
    """
    assert isinstance(items.act.op, Activation)
    gated = items.act.op.num_inputs_wide == 2
    gate = getattr(module, "_apply_gate", None)
    if gated and callable(gate):
        return gate  # type: ignore[no-any-return]
    children = [c for c in module.children() if not any(True for _ in c.parameters())]
    if len(children) != 1:
        raise UnsupportedModelError(
            f"{items.up.op.fqn}: no gating function and {len(children)} activations to choose from"
        )
    act = children[0]
    if not gated:
        return act
    interleaved = isinstance(items.up.op, ExpertsLinear) and items.up.op.interleaved

    def gated_activation(rows: Tensor) -> Tensor:
        first, second = (rows[..., ::2], rows[..., 1::2]) if interleaved else rows.chunk(2, dim=-1)
        return act(first) * second  # type: ignore[no-any-return]

    return gated_activation


def emit_experts(module: nn.Module, items: ExpertsItems, axes: Axes) -> None:
    """Replace the forward of an experts module."""
    replace_forward(module, lambda _: ExpertsForward(module, items, axes))
