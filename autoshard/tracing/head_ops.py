"""Saying on the ops of a block what `autoshard.tracing.head_split` found about the modules they are in."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from torch import nn

from autoshard.ir import Attention, Combine, FusedOp, Linear, Mixer, Norm, Param
from autoshard.tracing.head_split import ModuleSplit, NotSplit, find_split


def split_by_heads(model: Callable[[], nn.Module], ops: Sequence[FusedOp]) -> tuple[FusedOp, ...]:
    """``ops`` of a block with what a split by heads means for each; ``model`` gives the model on meta tensors.

    A module of recurrent mixers, and an attention module with a fused projection, are looked at; others keep q, k and v
    apart and need nothing of this.
    """
    for leader in _leaders(ops):
        entries = frozenset(
            op.fqn.removeprefix(leader.fqn + ".")
            for op in ops
            if isinstance(op, Linear) and op.fqn.startswith(leader.fqn + ".") and op.name in leader.inputs
        )
        try:
            ops = _told(ops, leader, find_split(model(), leader.fqn, entries))
        except NotSplit as reason:
            ops = [replace(op, unsplit=str(reason)) if op.name == leader.name else op for op in ops]  # type: ignore[call-arg]
    return tuple(ops)


def _leaders(ops: Sequence[FusedOp]) -> Iterator[Mixer | Attention]:
    """The first mixer of every module with one, and attention cores that read one fused projection."""
    seen = set()
    by_name = {op.name: op for op in ops}
    for op in ops:
        if op.fqn in seen:
            continue
        fused = isinstance(op, Attention) and len(op.inputs) == 1 and isinstance(by_name.get(op.inputs[0]), Linear)
        if isinstance(op, Mixer) or fused:
            seen.add(op.fqn)
            yield op  # type: ignore[misc]


def _told(ops: Sequence[FusedOp], leader: Mixer | Attention, found: ModuleSplit) -> list[FusedOp]:
    """``ops`` with the split of the module of ``leader``: parts of its linears, and ops that follow the leader."""
    prefix = leader.fqn + "."
    split: set[str] = set()  # tensors that a rank has its heads of
    told: list[FusedOp] = []
    for op in ops:
        inside = op.fqn == leader.fqn or op.fqn.startswith(prefix)
        name = op.fqn.removeprefix(prefix)
        reads = bool(split & set(op.inputs))
        if inside and isinstance(op, Linear) and name in found.inner:
            op = replace(op, follows=leader.name, params=_params(op, found, prefix))
            split.add(op.name)
        elif inside and isinstance(op, Linear) and name in found.entries:
            parts = found.entries[name]
            equal = len(set(parts)) == 1
            op = replace(op, packed=len(parts) if equal else 1, parts=() if equal else parts)
            split.add(op.name)
        elif op.name == leader.name:
            op = replace(op, split=found.heads, params=_params(op, found, prefix))  # type: ignore[call-arg]
            op = replace(op, whole=_whole(op, split)) if isinstance(op, Mixer) else op
            split.add(op.name)
        elif inside and reads and isinstance(op, Mixer | Combine) and op.follows is None:
            params = _params(op, found, prefix)
            op = replace(op, follows=leader.name, params=params, whole=_whole(op, split))
            split.add(op.name)
        elif inside and reads and isinstance(op, Norm) and op.follows is None:
            op = replace(op, follows=leader.name, within_heads=True, params=_params(op, found, prefix))
            split.add(op.name)
        told.append(op)
    placed = {p.fqn for op in told for p in op.params if p.parts}
    missing = sorted(set(found.parameters) - {fqn.removeprefix(prefix) for fqn in placed})
    if missing:
        raise NotSplit(f"no op that could be split has {missing[0]}")
    return told


def _whole(op: FusedOp, split: set[str]) -> tuple[str, ...]:
    return tuple(name for name in op.inputs if name not in split)


def _params(op: FusedOp, found: ModuleSplit, prefix: str) -> tuple[Param, ...]:
    """The parameters of an op with the parts that the split divides."""
    told = []
    for p in op.params:
        dim, parts = found.parameters.get(p.fqn.removeprefix(prefix), (0, ()))
        told.append(replace(p, split_dim=dim, parts=parts))
    return tuple(told)
