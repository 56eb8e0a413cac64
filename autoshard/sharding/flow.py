"""From choices to layouts: what each tensor is delivered as, and which steps bring it there.

One rule decides everything: a tensor made by a module is delivered once, replicated if any reader needs it whole, as
all readers need it otherwise; readers that need a shard of a whole tensor slice it for free. Tensors that no module
makes (the residual, the attention core's and the activation's output) are moved where they are read. So a gather that
two readers share is paid once, and a sharded output always pays for what its reader needs -- residual additions
included.

Experts that are not stacked run whole, each rank on its own tokens: nothing is brought to them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from autoshard.errors import UnsupportedModelError
from autoshard.ir import (
    BLOCK_INPUT,
    Activation,
    Add,
    Attention,
    Block,
    Combine,
    ExpertsLinear,
    FusedOp,
    Indexer,
    LatentAttention,
    Mixer,
    OpGraph,
)
from autoshard.sharding.layout import TP, Layout, R, Step, T, redistribute
from autoshard.sharding.moe import StagePattern, combine, dispatch, dispatch_need
from autoshard.sharding.option import Option
from autoshard.sharding.rules.experts import is_stacked
from autoshard.sharding.space import consumers, tensor_axes, tensor_rows, tensor_width

_INLINE = (Attention, LatentAttention, Indexer, Mixer, Combine, Activation, Add)
"""Ops without a module of their own: no step can be put around them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moves:
    """What happens to one tensor: ``exit`` steps where it is made, ``entry`` steps per reader (in readers' order)."""

    delivered: Layout
    exit: tuple[Step, ...] = ()
    entry: tuple[tuple[Step, ...], ...] = ()


def is_moved_by_readers(op: FusedOp | None) -> bool:
    """True for tensors that no module produces; ``None`` stands for the block's input."""
    return op is None or isinstance(op, _INLINE)


def tensor_moves(
    block: Block,
    producer: FusedOp | None,
    raw: Layout,
    readers: Sequence[tuple[FusedOp, int, Layout]],
    *,
    final: Layout | None,
    pattern: StagePattern,
) -> Moves:
    """Moves of the tensor that ``producer`` makes (None: the block's input) in layout ``raw``.

    ``readers`` are (op, input position, needed layout); ``final`` is the layout wanted where the tensor leaves the
    block, None if it does not.
    """
    if isinstance(producer, ExpertsLinear) and producer.stage == "down" and is_stacked(producer):
        wanted = final if final is not None else readers[0][2]
        steps = combine(raw, wanted, pattern, hidden=producer.out_dim.size)
        return Moves(delivered=wanted, exit=steps, entry=tuple(() for _ in readers))
    if producer is None:
        axes, rows, width, packed = TP, "local", _residual_width(block), 1
    else:
        axes, rows, width = tensor_axes(block, producer), tensor_rows(producer), tensor_width(producer)
        rows = "arrived" if rows == "pairs" and pattern.exchange else rows
        packed = 1 if getattr(producer, "interleaved", False) else getattr(producer, "packed", 1)

    def bridge(src: Layout, dst: Layout) -> tuple[Step, ...]:
        steps = redistribute(src, dst, axes=axes, rows=rows, width=width, packed=packed)  # type: ignore[arg-type]
        parts = getattr(producer, "parts", ())
        return tuple(replace(step, parts=parts) for step in steps) if parts else steps

    needs = [_token_need(op, need, position, pattern) for op, position, need in readers]
    if is_moved_by_readers(producer):
        delivered = raw
        leave: tuple[Step, ...] = ()
    else:
        wanted_all = [*needs, *([] if final is None else [final])]
        delivered = wanted_all[0] if len(set(wanted_all)) == 1 else R
        leave = bridge(raw, delivered)
    entry = []
    for (op, position, need), at_tp in zip(readers, needs, strict=True):
        steps = bridge(delivered, at_tp)
        if isinstance(op, ExpertsLinear) and op.stage == "up" and position == 0 and is_stacked(op):
            steps = (*steps, *dispatch(need, pattern, op))
        elif steps and isinstance(op, _INLINE):
            raise UnsupportedModelError(f"{op.fqn}: its input {width} wide would have to move inside the module")
        entry.append(steps)
    return Moves(delivered=delivered, exit=leave, entry=tuple(entry))


def _token_need(op: FusedOp, need: Layout, position: int, pattern: StagePattern) -> Layout:
    if isinstance(op, ExpertsLinear) and op.stage == "up" and position == 0 and is_stacked(op):
        return dispatch_need(need, pattern)
    return need


def _residual_width(block: Block) -> int:
    for op in block.ops:
        if isinstance(op, Add):
            return op.width.size
    return next((tensor_width(op) for op in block.ops if BLOCK_INPUT in op.inputs), 1)


def block_residual(graph: OpGraph, block: Block, residual: Layout) -> Layout:
    """The residual's layout in a block: before the layers tokens stay whole, since masks and positions read how many.

    The first layer slices its input, which costs nothing.
    """
    return R if residual is T and block is graph.prologue else residual


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedOp:
    """A fused op under a strategy: its option, the steps before it (per input) and after it, what it delivers."""

    op: FusedOp
    option: Option | None
    entry: tuple[tuple[Step, ...], ...]
    exit: tuple[Step, ...]
    delivered: Layout

    def steps(self) -> tuple[Step, ...]:
        """All steps, in the order they run."""
        before = tuple(s for steps in self.entry for s in steps)
        return (*before, *(() if self.option is None else self.option.internal), *self.exit)


def resolve_block(
    block: Block, chosen: Mapping[str, Option], residual: Layout, pattern: StagePattern
) -> tuple[ResolvedOp, ...]:
    """Layouts and steps of one block when op ``name`` takes ``chosen[name]`` (adds are absent).

    A tensor without a reader leaves the block: the residual from a prologue or layer, replicated logits from the head.
    """
    entry: dict[tuple[str, int], tuple[Step, ...]] = {}
    moves: dict[str, Moves] = {}
    for producer in (None, *block.ops):
        name = BLOCK_INPUT if producer is None else producer.name
        readers = [
            (op, i, residual if isinstance(op, Add) else chosen[op.name].needs[i])
            for op, i in consumers(block, name)
            if not (name == BLOCK_INPUT and op.kind == "embedding")
        ]
        raw = residual if producer is None or isinstance(producer, Add) else chosen[producer.name].yields
        final = None
        if producer is not None and not readers:
            final = R if getattr(producer, "is_head", False) else residual
        if producer is None and not readers:
            continue
        moved = tensor_moves(block, producer, raw, readers, final=final, pattern=pattern)
        moves[name] = moved
        for (op, i, _), steps in zip(readers, moved.entry, strict=True):
            entry[op.name, i] = steps
    return tuple(
        ResolvedOp(
            op=op,
            option=chosen.get(op.name),
            entry=tuple(entry.get((op.name, i), ()) for i in range(len(op.inputs))),
            exit=moves[op.name].exit,
            delivered=moves[op.name].delivered,
        )
        for op in block.ops
    )
