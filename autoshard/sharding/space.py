"""Which choices each fused op has, and why one is missing.

An option is offered where every width it splits divides by its axis. Options that mean the same at degree one are
one: over an axis of size one only "replicated" is left (the residual and norms likewise).
"""

from collections.abc import Sequence
from dataclasses import replace

from autoshard.ir import (
    BLOCK_INPUT,
    Activation,
    Add,
    Attention,
    Block,
    Combine,
    Embedding,
    ExpertsLinear,
    FusedOp,
    Indexer,
    LatentAttention,
    Linear,
    Mixer,
    Norm,
    Opaque,
    OpGraph,
    Router,
    once_per_graph,
)
from autoshard.sharding.layout import ETP, KV, TP, Axis, Rows, TensorAxes
from autoshard.sharding.option import Choice, Option
from autoshard.sharding.padding import PLAIN, Grain
from autoshard.sharding.rules import (
    attention,
    embedding,
    experts,
    latent,
    linear,
    mixer,
    norm,
    own_experts,
    pointwise,
    router,
)
from autoshard.sharding.wider import KV_SEQUENCE, has_sequence_option


def consumers(block: Block, name: str) -> list[tuple[FusedOp, int]]:
    """The ops of the block that read the tensor ``name``, with the position among their inputs."""
    return [(op, i) for op in block.ops for i, source in enumerate(op.inputs) if source == name]


def tensor_axes(block: Block, op: FusedOp) -> TensorAxes:
    """The axes of an op's output: etp inside routed experts, the kv split for keys and values, tp otherwise."""
    if isinstance(op, ExpertsLinear) or (isinstance(op, Activation) and op.routed):
        return ETP
    if isinstance(op, Linear | Norm):
        for reader, position in consumers(block, op.name):
            if isinstance(reader, Attention) and position > 0:
                return KV
            if isinstance(reader, Norm) and reader.follows is not None and tensor_axes(block, reader) == KV:
                return KV
    return TP


def tensor_rows(op: FusedOp) -> Rows:
    """Rows of an op's output."""
    routed = isinstance(op, ExpertsLinear) or (isinstance(op, Activation) and op.routed)
    return "pairs" if routed else "local"


def tensor_width(op: FusedOp) -> int:
    """Feature width of an op's output, unsharded."""
    match op:
        case Embedding():
            return op.hidden.size
        case Linear() | ExpertsLinear():
            return op.out_dim.size
        case Attention() | LatentAttention():
            return op.heads.size * op.v_dim
        case Indexer():
            return op.top_k
        case Router():
            return op.experts.size
        case Norm() | Activation() | Add() | Opaque() | Mixer() | Combine():
            return op.width.size


def options(block: Block, op: FusedOp, wider: Sequence[str] = ()) -> tuple[Option, ...]:
    """Every option of an op, legal or not at given degrees. An `Add` has none: it follows the residual.

    Options of the parts ``wider`` of the space (`autoshard.sharding.wider`) come last.
    """
    axes = tensor_axes(block, op)
    own = _own_options(block, op, axes)
    if KV_SEQUENCE not in wider or not has_sequence_option(op):
        return own
    if isinstance(op, LatentAttention):
        return (*own, *latent.sequence_options(op, axes))
    assert isinstance(op, Attention)
    return (*own, *(attention.sequence_options(op, axes) if _has_own_projections(block, op) else ()))


def _own_options(block: Block, op: FusedOp, axes: TensorAxes) -> tuple[Option, ...]:
    match op:
        case Embedding():
            return embedding.options(op, axes)
        case Norm():
            return norm.options(op, axes, out_of=output_grain(block, op))
        case Linear() if op.follows is None and not is_module(block, op):
            return linear.options(op, axes)[-1:]
        case Linear():
            return linear.options(op, axes, into=input_grain(block, op), out_of=output_grain(block, op))
        case Attention():
            return attention.options(
                op, axes, separate=_has_own_projections(block, op), padded=heads_are_padded(block, op)
            )
        case LatentAttention():
            return latent.options(op, axes, padded=heads_are_padded(block, op))
        case Mixer() | Combine() | Indexer():
            return mixer.options(op, axes)
        case Router():
            return router.options(op, axes)
        case ExpertsLinear():
            if experts.is_stacked(op):
                return experts.options(op, axes)
            return own_experts.options(
                op if own_experts_reason(block, op) is None else replace(op, form="inside"), axes
            )
        case Activation() | Opaque():
            made = next((o for o in block.ops if o.name in op.inputs), None)
            return pointwise.options(op, axes, unpadded=isinstance(made, ExpertsLinear) and made.blocks != (1, 1))
        case Add():
            return ()


def is_module(block: Block, op: Linear) -> bool:
    """Whether a matrix is the forward of a module of its own, so that something can be put before and after it."""
    owned = all(p.fqn.rpartition(".")[0] == op.fqn for p in op.params)
    return owned and not any(o.fqn == op.fqn for o in block.ops if o is not op)


def option_axis(option: Option) -> Axis | None:
    """The axis an option splits its op over; None for a replicated one."""
    if option.choice is None:
        return None
    if option.split_in or option.split_out:
        return option.split_in or option.split_out
    return next(s.axis for shards in option.params for s in shards)


def expands_latent_of(block: Block, op: FusedOp) -> LatentAttention | None:
    """The core for which a matrix expands the cached latent; None for any other op."""
    if not isinstance(op, Linear) or op.in_dim.name != "kv_rank":
        return None
    return next((r for r, position in consumers(block, op.name) if isinstance(r, LatentAttention) and position), None)


def leader_of(block: Block, op: FusedOp) -> FusedOp | None:
    """The op whose choice another has; None for one that decides for itself.

    Experts that the model's own code runs have that of their first matrix. The matrix that expands a latent has its
    core's: it runs on the whole cached past at every step (engines absorb it into the core), so that rows of it
    without the heads they make would gather all of that past.
    """
    core = expands_latent_of(block, op)
    if core is not None:
        return core
    if not (isinstance(op, ExpertsLinear) or (isinstance(op, Activation) and op.routed)):
        return None
    first = next((o for o in block.ops if isinstance(o, ExpertsLinear)), None)
    return None if first is None or experts.is_stacked(first) else first


def own_experts_reason(block: Block, op: ExpertsLinear) -> str | None:
    """Why experts that the model's own code runs are whole on every rank; None if ranks can have some each.

    What the module around them returns must be what they give: its sum over ranks is taken where it ends. Batched
    experts are summed where their own module ends.
    """
    if op.form == "inside":
        return "they are written out in a module that is not told which experts a token goes to"
    if op.form == "batched":
        return None
    around = own_experts.module_around(op)
    if around == block.instances[0] or not around.startswith(block.instances[0] + "."):
        return "they have no module of their own around them"
    for other in block.ops:
        experts_too = isinstance(other, ExpertsLinear | Router) or (isinstance(other, Activation) and other.routed)
        if not experts_too and any(p.fqn.startswith(around + ".") for p in other.params):
            return f"{other.name} is in the module that calls them"
    return None


def free_ops(block: Block) -> Sequence[FusedOp]:
    """Ops with a choice of their own: not adds, not followers of another op, not what only runs replicated."""
    fixed = (Add, Opaque, Combine, Indexer)
    own = [op for op in block.ops if op.follows is None and not isinstance(op, fixed)]
    own = [op for op in own if leader_of(block, op) in (None, op)]
    return [op for op in own if not isinstance(op, Mixer) or not (op.split is None or op.unsplit)]


def _has_own_projections(block: Block, op: Attention) -> bool:
    """Whether q, k and v come from three projections, so that each rank can have its heads."""
    if op.pooled is not None:
        return False
    made = {o.name: o for o in block.ops}
    own = [made[name] for name in op.inputs if name in made and not isinstance(made[name], Indexer)]
    return len({o.name for o in own}) == 3 == len(own) and all(isinstance(o, Linear | Norm) for o in own)


def heads_are_padded(block: Block, op: FusedOp) -> bool:
    """Whether the heads of an attention core may be filled up: matrices make q, k and v by heads, and one reads it.

    Norms of single heads may stand in between; a norm of all heads together would count those that are zero.
    """
    if isinstance(op, Attention):
        made = {o.name: o for o in block.ops}
        widths = (op.heads.size * op.qk_dim, op.kv_heads.size * op.qk_dim, op.kv_heads.size * op.v_dim)
        if not _has_own_projections(block, op) or op.pooled is not None or op.selected is not None:
            return False
        for name, width in zip(op.inputs, widths, strict=False):
            while isinstance(made[name], Norm):
                if made[name].group == made[name].width.size or tensor_width(made[name]) != width:  # type: ignore[union-attr]
                    return False
                name = made[name].inputs[0]
            own = made[name]
            if not isinstance(own, Linear) or own.packed > 1 or own.parts or own.out_dim.size != width:
                return False
    elif not isinstance(op, LatentAttention):
        return False
    readers = [reader for reader, _ in consumers(block, op.name)]
    return len(readers) == 1 and isinstance(readers[0], Linear) and readers[0].in_dim.size == tensor_width(op)


def core_grain(op: FusedOp, width: int) -> Grain:
    """Pieces of a tensor of ``width`` that has a part for every head of a core: query heads of a kv head, elements."""
    assert isinstance(op, Attention | LatentAttention)
    group = op.heads.size // op.kv_heads.size if isinstance(op, Attention) else 1
    return group, width // op.heads.size


def input_grain(block: Block, op: Linear) -> Grain | None:
    """Pieces in which the columns of a matrix are filled up; None if they cannot be."""
    made = next((o for o in block.ops if o.name == op.inputs[0]), None)
    if isinstance(made, Attention | LatentAttention):
        return core_grain(made, op.in_dim.size) if heads_are_padded(block, made) else None
    return None if isinstance(made, Mixer | Combine | Opaque | Indexer) else PLAIN


def output_grain(block: Block, op: FusedOp) -> Grain | None:
    """Pieces in which the rows of a matrix, or what a core or norm makes, are filled up; None if they cannot be."""
    if isinstance(op, Attention | LatentAttention):
        return core_grain(op, tensor_width(op)) if heads_are_padded(block, op) else None
    found: Grain | None = PLAIN
    for reader, position in consumers(block, op.name):
        if isinstance(reader, Attention | LatentAttention):
            if not heads_are_padded(block, reader):
                return None
            width = tensor_width(op)
            if isinstance(reader, Attention) and position > 0:
                found = (1, width // reader.kv_heads.size)
            elif not isinstance(reader, LatentAttention) or position < 2:
                found = core_grain(reader, width)
        elif isinstance(reader, Norm) and reader.follows is not None:
            found = output_grain(block, reader)
        elif isinstance(reader, Mixer | Combine | Opaque | Indexer) or (isinstance(op, Linear) and op.follows):
            return None
    return found


_NO_MODULE = "another module computes with its weight, and more besides"


def never_offered(block: Block, op: FusedOp) -> tuple[tuple[Choice, str], ...]:
    """Choices that an op of its kind could have and this one has not at any degrees, each with the reason."""
    offered = {option.choice for option in options(block, op)}
    match op:
        case Attention() | Mixer():
            why = op.unsplit or "its q, k and v do not come from projections in a module that was looked at"
            found: tuple[tuple[Choice, str], ...] = ((0, why),)
        case ExpertsLinear():
            why = own_experts_reason(block, op) or "the model's own code has one matrix follow the other"
            found = ((0, why), (1, why))
        case Linear() if op.follows is None and not is_module(block, op):
            found = ((0, _NO_MODULE), (1, _NO_MODULE))
        case Linear() if (core := expands_latent_of(block, op)) is not None:
            goes = f"it goes with {core.name}: it expands the whole cached past, for the heads that a rank has"
            return ((0, goes), (1, "its module reshapes the latent at its whole width"), (None, goes))
        case Linear() if op.in_dim.name == "kv_rank":
            found = ((1, "its module reshapes the latent at its whole width"),)
        case Norm():
            found = ((0, "its input is needed whole anyway"),)
        case Opaque():
            found = ((0, op.reason or "it was not recognised"),)
        case _:
            found = ()
    return tuple((choice, why) for choice, why in found if choice not in offered)


@once_per_graph
def sharded_residual_reason(graph: OpGraph) -> str | None:
    """Why the residual cannot be sharded whatever the degrees; None if nothing forbids it.

    A tensor that no module makes can only be sliced where a module reads it, and a residual sum is not one.
    """
    for block, op in graph.all_ops():
        added = any(isinstance(reader, Add) for reader, _ in consumers(block, op.name))
        loose = isinstance(op, ExpertsLinear) and not experts.is_stacked(op)
        loose = loose or (isinstance(op, Linear) and op.follows is None and not is_module(block, op))
        if added and (loose or (isinstance(op, Combine | Mixer | Opaque) and op.follows is None)):
            return f"{block.name}/{op.name} is added to it, runs replicated and is not a module that could be cut"
        if isinstance(op, ExpertsLinear) and op.stage == "down" and not experts.is_stacked(op):
            why = own_experts_reason(block, op)
            if why is not None:
                return f"{block.name}/{op.name} is added to it, whole: {why}"
    return None


@once_per_graph
def split_tokens_reason(graph: OpGraph) -> str | None:
    """Why the residual's tokens cannot be split whatever the degrees; None if nothing forbids it.

    Split tokens have another shape than the model's code expects, so that only norms and additions may see them, and
    a module around the experts must stand between these and the layer.
    """
    reason = sharded_residual_reason(graph)
    if reason is not None:
        return reason
    for block in (*graph.blocks, graph.epilogue):
        for name in (BLOCK_INPUT, *(op.name for op in block.ops if isinstance(op, Add))):
            for reader, _ in consumers(block, name):
                if not isinstance(reader, Add | Norm):
                    return f"{block.name}/{reader.name} reads it without a norm in between"
    for block in graph.blocks:
        if not block.instances[0]:
            return f"the layers of {block.name} are not modules"
        experts = {op.fqn for op in block.ops if isinstance(op, ExpertsLinear)}
        if any(fqn.rpartition(".")[0] == block.instances[0] for fqn in experts):
            return f"the experts of {block.name} have no module around them"
    return None
