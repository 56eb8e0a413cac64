"""Experts that the model's own code runs: each rank has some of them, and adds up what they give.

Listed experts of other ranks become stand-ins that give zeros, so that whatever loop calls them adds nothing for them;
what the module around them returns is then this rank's share, and is summed where it ends. Batched experts get the rows
of this rank's experts only, and their results are summed over the experts at once: the whole sum is returned as the
rows of the first expert, zeros as those of the others, for the module around to add up.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from autoshard.emit.checkpoint.tensors import note_elsewhere
from autoshard.emit.local import local_parameters, map_first_tensor, replace_forward
from autoshard.emit.steps import Axes, run_steps
from autoshard.ir import Block, ExpertsLinear
from autoshard.sharding import Layout, ParamPlacement, ResolvedOp
from autoshard.sharding.rules.own_experts import expert_module


class ForeignExpert(nn.Module):
    """An expert that another rank has: rows (..., in) -> zeros (..., width)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Zeros for the rows of the first tensor."""
        x = next(v for v in (*args, *kwargs.values()) if isinstance(v, Tensor) and v.is_floating_point())
        return x.new_zeros(*x.shape[:-1], self.width)


def held_here(placements: Sequence[ParamPlacement], axes: Axes) -> tuple[ParamPlacement, ...]:
    """Those of a stage's parameters that this rank has."""
    return tuple(p for p in placements if p.held_by is None or axes[p.held_by[0]].coordinate == p.held_by[1])  # type: ignore[index]


def keep_experts(
    model: nn.Module, blocks: Sequence[tuple[Block, int]], placements: Sequence[ParamPlacement], axes: Axes
) -> None:
    """Put stand-ins in place of the listed experts of ``blocks`` that other ranks have."""
    away = {p.fqn for p in placements} - {p.fqn for p in held_here(placements, axes)}
    for block, instance in blocks:
        downs = [op for op in block.ops if isinstance(op, ExpertsLinear) and op.stage == "down" and op.form == "listed"]
        for op in downs:
            for name in (block.fqn(p.fqn, instance) for p in op.params):
                if name in away:
                    path = expert_module(name)[0]
                    parent, _, child = path.rpartition(".")
                    stand_in, whole = ForeignExpert(op.out_dim.size), model.get_submodule(path)
                    if not isinstance(whole, ForeignExpert):
                        note_elsewhere(stand_in, whole)
                        model.get_submodule(parent)._modules[child] = stand_in


def emit_own_experts(
    model: nn.Module, block: Block, instance: int, items: Sequence[ResolvedOp], down: ResolvedOp, axes: Axes
) -> None:
    """Run the experts whose last matrix is ``down`` on local shards, and sum what they give."""
    op = down.op
    assert isinstance(op, ExpertsLinear)
    names = [
        block.fqn(p.fqn, instance)
        for item in items
        if isinstance(item.op, ExpertsLinear) and item.op.stage in ("up", "down")
        for p in item.op.params
    ]
    owners = dict.fromkeys(name.rpartition(".")[0] for name in names)
    held = [module for module in (_find(model, name) for name in owners) if module is not None]
    biases = [
        (module, name.rpartition(".")[2])
        for p in op.params
        if p.role == "bias"
        for name in [block.fqn(p.fqn, instance)]
        for module in [_find(model, name.rpartition(".")[0])]
        if module is not None
    ]
    partial = down.option is not None and down.option.yields is Layout.PARTIAL
    none = partial and axes["etp"].coordinate > 0  # the sum counts every bias once

    @contextmanager
    def local() -> Iterator[None]:
        with ExitStack() as stack:
            for owner in held:
                stack.enter_context(local_parameters(owner))
            for owner, name in biases if none else ():
                owner._parameters[name] = torch.zeros_like(owner._parameters[name])  # type: ignore[arg-type, assignment]
            yield

    if op.form == "batched":
        module, run = model.get_submodule(block.fqn(op.fqn, instance)), _batched(op, down, axes)
    else:
        module, run = _called_around(model, list(owners)), _summed(down, axes)

    def make(forward: Callable[..., Any]) -> Callable[..., Any]:
        def within(*args: Any, **kwargs: Any) -> Any:
            with local():
                return forward(*args, **kwargs)

        return run(within)

    replace_forward(module, make)


def _find(model: nn.Module, name: str) -> nn.Module | None:
    """A submodule; None where a stand-in is in its place."""
    try:
        return model.get_submodule(name)
    except AttributeError:
        return None


def _called_around(model: nn.Module, names: Sequence[str]) -> nn.Module:
    """The innermost module around all of ``names``, or itself all of them, that is called: lists and dicts are not."""
    path = names[0].split(".")
    while not all(f"{name}.".startswith("".join(f"{part}." for part in path)) for name in names):
        path.pop()
    while isinstance(model.get_submodule(".".join(path)), nn.ModuleList | nn.ModuleDict):
        path.pop()
    return model.get_submodule(".".join(path))


def _summed(down: ResolvedOp, axes: Axes) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The sum of what a module returns (first), as it is delivered."""

    def make(forward: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            out = forward(*args, **kwargs)
            if isinstance(out, Tensor):
                return run_steps(out, down.exit, axes)
            return type(out)((run_steps(out[0], down.exit, axes), *out[1:]))

        return run

    return make


def _batched(op: ExpertsLinear, down: ResolvedOp, axes: Axes) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Rows (experts * tokens, h) -> the sum of all experts as the rows of the first, zeros as those of the others."""
    experts, ep = op.experts.size, axes["ep"]
    local = experts // ep.size

    def make(forward: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Tensor:
            def own(x: Tensor) -> Tensor:
                rows = torch.unflatten(x.reshape(-1, x.shape[-1]), 0, (experts, -1))
                return rows[ep.coordinate * local : (ep.coordinate + 1) * local].flatten(0, 1)

            args, kwargs = map_first_tensor(args, kwargs, own)
            total = torch.unflatten(forward(*args, **kwargs), 0, (local, -1)).sum(0)
            total = run_steps(total, down.exit, axes)
            return torch.cat((total, total.new_zeros((experts - 1) * len(total), total.shape[1])))

        return run

    return make
