"""Saying on the ops of a block what `autoshard.tracing.head_split` found about the modules they are in."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from autoshard.ir import Attention, Combine, FusedOp, HeadSplit, Linear, Mixer, Norm, Param
from autoshard.tracing.head_bench import Calls
from autoshard.tracing.head_split import ModuleSplit, NotSplit, find_split


def split_by_heads(calls: Callable[[], Calls], ops: Sequence[FusedOp]) -> tuple[FusedOp, ...]:
    """``ops`` of a block with what a split by heads means for each; ``calls`` gives those of the model.

    Looked at are modules of recurrent mixers, attention modules with a fused projection, and those of plain models.
    transformers' modules with projections for q, k and v each need nothing of this: they view by the size of a head.
    """
    plain = not hasattr(getattr(calls().model, "config", None), "get_text_config") if _has_attention(ops) else False
    for leader in _leaders(ops, plain=plain):
        entries = frozenset(
            op.fqn.removeprefix(leader.fqn + ".")
            for op in ops
            if isinstance(op, Linear) and op.fqn.startswith(leader.fqn + ".") and op.name in leader.inputs
        )
        fused = len(leader.inputs) == 1 or isinstance(leader, Mixer)
        try:
            found = find_split(calls(), leader.fqn, entries)
            if fused or found.heads.counts or found.heads.readers:
                ops = _told(ops, leader, found)
        except NotSplit as reason:
            split = HeadSplit(size=1, readers=reason.readers) if reason.readers else None
            told = replace(leader, split=split, unsplit=str(reason))
            ops = [told if op.name == leader.name else op for op in ops]
    return tuple(ops)


def _has_attention(ops: Sequence[FusedOp]) -> bool:
    return any(isinstance(op, Attention | Mixer) for op in ops)


def _leaders(ops: Sequence[FusedOp], *, plain: bool) -> Iterator[Mixer | Attention]:
    """The first mixer of every module with one; attention cores that read one fused projection, or of plain models."""
    seen = set()
    by_name = {op.name: op for op in ops}
    for op in ops:
        if op.fqn in seen:
            continue
        fused = isinstance(op, Attention) and len(op.inputs) == 1 and isinstance(by_name.get(op.inputs[0]), Linear)
        if isinstance(op, Mixer) or fused or (plain and isinstance(op, Attention)):
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
        elif op.name == leader.name and isinstance(op, Mixer | Attention):
            op = replace(op, split=found.heads, params=_params(op, found, prefix))
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
