"""Routed experts on their shard: dispatch, own experts on own rows, combine. The module's forward is replaced by ours.

Where tokens are gathered, shapes are static: every rank handles all ``tokens of all dp ranks x top_k`` pairs, sorted by
expert, and computes those of its own experts; the others' rows carry undefined numbers through and are zeroed before
they are summed. So the steps in between move what the plan lists, and nothing depends on the data. Where tokens are
exchanged (`autoshard.emit.exchange`) there are no others' rows, and how many there are depends on the router.

Shape letters: t tokens of all dp ranks, k experts per token, e local experts, h hidden, f intermediate.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from autoshard.emit.dispatch import RoutedTokens, gather_tokens, identify
from autoshard.emit.exchange import exchange
from autoshard.emit.grouped import grouped_linear
from autoshard.emit.local import local_parameters, replace_forward
from autoshard.emit.pairs import SortedPairs, sort_pairs
from autoshard.emit.steps import Axes, run_step, run_steps
from autoshard.errors import UnsupportedModelError
from autoshard.ir import Activation, ExpertsLinear
from autoshard.sharding import Layout, ResolvedOp, Step
from autoshard.sharding.layout import own_tokens
from autoshard.sharding.padding import padded_width


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsItems:
    """The fused ops of one experts module under a strategy."""

    up: ResolvedOp
    act: ResolvedOp
    down: ResolvedOp


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
        found = identify((*args, *kwargs.values()), up.op.top_k)
        leading = found.hidden.shape[:-1]
        hidden = found.hidden.reshape(-1, found.hidden.shape[-1])
        tokens = self.dispatch(RoutedTokens(hidden=hidden, experts=found.experts, weights=found.weights))
        num_experts = padded_width(up.op.experts.size, self.axes["ep"].size)
        sent = exchange(tokens, num_experts, self.axes["ep"]) if self.exchanged else None
        with local_parameters(self.module) as local:
            if sent is None:
                num_local = next(iter(local.values())).shape[0]
                pairs = sort_pairs(tokens.experts, self.axes["ep"].coordinate * num_local, num_local)
                rows = tokens.hidden[pairs.order // up.op.top_k]
            else:
                pairs, rows = sent.pairs, sent.rows
            rows = self.matrix(up, local, rows, pairs)
            rows = self.activate(run_steps(rows, self.items.act.exit, self.axes))
            rows = self.matrix(down, local, run_steps(rows, down.entry[0], self.axes), pairs)
        if sent is None:
            shares = torch.empty_like(rows)
            shares[pairs.order] = torch.where(pairs.own[:, None], rows, 0)
        else:
            shares = sent.back(rows)
        shares = shares * tokens.weights.reshape(-1)[:, None]
        total = torch.unflatten(shares, 0, tuple(tokens.experts.shape)).sum(1).to(hidden.dtype)
        total = self.combine(total, hidden.shape[0])
        return total.reshape(*leading, total.shape[-1])

    @property
    def exchanged(self) -> bool:
        """Whether tokens are exchanged with the ranks of their experts; otherwise they are gathered."""
        return any(step.kind == "all_to_all" for step in self.items.up.entry[0])

    def dispatch(self, tokens: RoutedTokens) -> RoutedTokens:
        """Tokens (of all dp ranks, or those that this rank exchanges) in the layout that the up matrix reads."""
        for step in self.items.up.entry[0]:
            axis = self.axes[step.axis]
            if axis.size == 1 or step.kind == "all_to_all":
                continue
            if step.indices:
                tokens = gather_tokens(tokens, axis)
            elif step.dim == "token":
                tokens = tokens.map(partial(run_step, step=step, axis=axis))
            else:
                tokens = replace(tokens, hidden=run_step(tokens.hidden, step, axis))
        return tokens

    def combine(self, total: Tensor, num_tokens: int) -> Tensor:
        """Shares of tokens (t, h) -> those of this dp rank's ``num_tokens`` tokens, complete."""
        steps = [step for step in self.items.down.exit if step.kind != "all_to_all"]
        if not self.exchanged:
            return run_steps(total, steps, self.axes)
        share = own_tokens(num_tokens, {axis: self.axes[axis].size for axis in ("tp_ep", "dp_etp")})
        padded = total.new_zeros(share, total.shape[1])
        padded[: len(total)] = total
        back = [step for step in steps if step.axis != "tp" or step.kind == "all_reduce"]
        return run_steps(run_steps(padded, back, self.axes)[:num_tokens], steps[len(back) :], self.axes)

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
        packed, unit = (1, op.packed) if op.interleaved else (op.packed, 1)
        cut = Step(kind="slice", axis="etp", rows="pairs", width=0, packed=packed, grain=(1, unit))
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
