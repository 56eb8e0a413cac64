"""Ways to break a sharded model, run inside the ranks: each must be noticed."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist

import autoshard.emit.application as apply_module
import autoshard.emit.experts as experts_module
import autoshard.emit.heads as heads_module
import autoshard.emit.linear as linear_module
import autoshard.emit.steps as steps_module
import autoshard.validate.worker as worker_module
from autoshard._torch import DispatchMode
from autoshard.sharding import ResolvedOp
from autoshard.validate.comm_log import holds_dtensor


@contextmanager
def _patched(module: Any, name: str, make: Callable[[Any], Any]) -> Iterator[None]:
    before = getattr(module, name)
    setattr(module, name, make(before))
    try:
        yield
    finally:
        setattr(module, name, before)


def _change_items(change: Callable[[ResolvedOp], ResolvedOp]) -> Any:
    def make(resolve: Any) -> Any:
        return lambda *a: {b: tuple(change(i) for i in items) for b, items in resolve(*a).items()}

    return _patched(apply_module, "resolve_graph", make)


def _change_placements(change: Callable[[Any], Any]) -> Any:
    return _patched(apply_module, "stage_placements", lambda place: lambda *a: tuple(change(p) for p in place(*a)))


def drop_reduction() -> Any:
    """The partial sums of the attention's output are never added up."""
    return _change_items(lambda i: replace(i, exit=()) if i.op.name == "o" else i)


def drop_gather() -> Any:
    """The logits stay split over the vocabulary."""
    return _change_items(lambda i: replace(i, exit=()) if i.op.name == "head" else i)


def swap_placement() -> Any:
    """A matrix that is split is kept whole."""

    def change(p: Any) -> Any:
        whole = tuple(replace(x, kind="replicate") for x in p.placements)
        return replace(p, placements=whole) if p.fqn.endswith("q_proj.weight") else p

    return _change_placements(change)


def plain_shard() -> Any:
    """gate|up is split as if it were one matrix: right shapes and bytes, wrong columns."""

    def change(p: Any) -> Any:
        return replace(p, placements=tuple(replace(x, packed=1) for x in p.placements))

    return _change_placements(change)


def other_experts() -> Any:
    """Neighbouring ep ranks mistake their experts for each other's: right shapes and bytes, wrong experts."""

    def make(sort_pairs: Any) -> Any:
        return lambda experts, first, num_local: sort_pairs(experts, first ^ num_local, num_local)

    return _patched(experts_module, "sort_pairs", make)


def double_bytes() -> Any:
    """Reductions send twice what they need; the result is the same."""

    def make(all_reduce: Any) -> Any:
        return lambda x, axis: all_reduce(torch.stack((x, x)), axis)[0]

    return _patched(steps_module, "all_reduce", make)


def extra_collective() -> Any:
    """A collective that nobody planned, with no effect on the result."""

    def make(all_reduce: Any) -> Any:
        def twice(x: torch.Tensor, axis: Any) -> torch.Tensor:
            dist.all_reduce(x.new_zeros(1))
            return all_reduce(x, axis)  # type: ignore[no-any-return]

        return twice

    return _patched(steps_module, "all_reduce", make)


def bias_while_partial() -> Any:
    """The bias is added by every rank before the sum."""

    def make(local_parameters: Any) -> Any:
        return lambda module, **_: _without_bias_in(local_parameters(module))

    return _patched(linear_module, "local_parameters", make)


@contextmanager
def _without_bias_in(context: Any) -> Iterator[dict[str, Any]]:
    with context as local:
        yield {k: v for k, v in local.items() if k != "bias"}


def other_kv_heads() -> Any:
    """kv heads fewer than tp, dealt round robin instead of in runs: right shapes and bytes, wrong kv heads."""

    def change(p: Any) -> Any:
        if p.mesh_dims != ("dp", "tp_kv", "tp_rep"):
            return p
        dp, kv, rep = p.placements
        return replace(p, placements=(dp, rep, kv))

    return _change_placements(change)


def divided_groups() -> Any:
    """kv heads fewer than tp: all of them on every rank, and the number of groups merely divided by tp."""

    def whole(p: Any) -> Any:
        kept = p.fqn.endswith(("k_proj.weight", "v_proj.weight"))
        return replace(p, placements=tuple(replace(x, kind="replicate") for x in p.placements)) if kept else p

    def make(emit_attention: Any) -> Any:
        def run(module: Any, item: ResolvedOp, axes: Any) -> None:
            groups = module.num_key_value_groups // axes["tp"].size
            emit_attention(module, item, axes)
            module.num_key_value_groups = groups

        return run

    @contextmanager
    def both() -> Iterator[None]:
        with _change_placements(whole), _patched(apply_module, "emit_attention", make):
            yield

    return both()


def plain_convolution() -> Any:
    """The channels of a convolution over q|k|v of unequal widths split as if they were one run of heads."""

    def make(_: Any) -> Any:
        def run(x: torch.Tensor, dim: int, parts: Any, rank: int, size: int) -> torch.Tensor:  # noqa: ARG001
            width = x.shape[dim] // size
            return x.narrow(dim, rank * width, width)

        return run

    return _patched(heads_module, "own_rows", make)


class _NoDTensor(DispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert not holds_dtensor(types), f"{func} on DTensors"
        return func(*args, **(kwargs or {}))


def no_dtensor() -> Any:
    """Not a fault: forwards in which an operator on a DTensor raises."""

    def make(next_logits: Any) -> Any:
        def run(*args: Any) -> Any:
            with _NoDTensor():
                return next_logits(*args)

        return run

    return _patched(worker_module, "next_logits", make)


def hang() -> Any:
    """A rank that never gets on."""
    return _patched(apply_module, "check_parameters", lambda _: lambda *__: time.sleep(600))


def doze() -> Any:
    """Ranks that take their time."""
    return _patched(apply_module, "check_parameters", lambda _: lambda *__: time.sleep(2.5))


def die() -> Any:
    """Ranks that end without a word."""
    return _patched(apply_module, "check_parameters", lambda _: lambda *__: os._exit(3))
