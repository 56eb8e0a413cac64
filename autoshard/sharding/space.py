"""Which choices each fused op has, and why one is missing.

An option is offered where every width it splits divides by its axis. Options that mean the same at degree one are
one: over an axis of size one only "replicated" is left (the residual and norms likewise).
"""

from collections.abc import Sequence

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
from autoshard.sharding.rules import attention, embedding, experts, latent, linear, mixer, norm, pointwise, router


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


def options(block: Block, op: FusedOp) -> tuple[Option, ...]:
    """Every option of an op, legal or not at given degrees. An `Add` has none: it follows the residual."""
    axes = tensor_axes(block, op)
    match op:
        case Embedding():
            return embedding.options(op, axes)
        case Norm():
            return norm.options(op, axes)
        case Linear() if op.follows is None and not is_module(block, op):
            return linear.options(op, axes)[-1:]
        case Linear():
            return linear.options(op, axes)
        case Attention():
            return attention.options(op, axes, separate=_has_own_projections(block, op))
        case LatentAttention():
            return latent.options(op, axes)
        case Mixer() | Combine() | Indexer():
            return mixer.options(op, axes)
        case Router():
            return router.options(op, axes)
        case ExpertsLinear():
            return experts.options(op, axes)
        case Activation() if any(
            isinstance(o, ExpertsLinear) and not experts.is_stacked(o) for o in _makers(block, op)
        ):
            return pointwise.options(op, axes)[-1:]  # inside a module that has all of its experts whole
        case Activation() | Opaque():
            return pointwise.options(op, axes)
        case Add():
            return ()


def is_module(block: Block, op: Linear) -> bool:
    """Whether a matrix is the forward of a module of its own, so that something can be put before and after it."""
    owned = all(p.fqn.rpartition(".")[0] == op.fqn for p in op.params)
    return owned and not any(o.fqn == op.fqn for o in block.ops if o is not op)


def _makers(block: Block, op: FusedOp) -> list[FusedOp]:
    """The ops whose outputs an op reads."""
    return [o for o in block.ops if o.name in op.inputs]


def option_axis(option: Option) -> Axis | None:
    """The axis an option splits its op over; None for a replicated one."""
    if option.choice is None:
        return None
    if option.split_in or option.split_out:
        return option.split_in or option.split_out
    return next(s.axis for shards in option.params for s in shards)


def free_ops(block: Block) -> Sequence[FusedOp]:
    """Ops with a choice of their own: not adds, not followers of another op, not what only runs replicated."""
    fixed = (Add, Opaque, Combine, Indexer)
    own = [op for op in block.ops if op.follows is None and not isinstance(op, fixed)]
    return [op for op in own if not isinstance(op, Mixer) or not (op.split is None or op.unsplit)]


def _has_own_projections(block: Block, op: Attention) -> bool:
    """Whether q, k and v come from three projections, so that each rank can have its heads."""
    if op.pooled is not None:
        return False
    made = {o.name: o for o in block.ops}
    own = [made[name] for name in op.inputs if name in made and not isinstance(made[name], Indexer)]
    return len({o.name for o in own}) == 3 == len(own) and all(isinstance(o, Linear | Norm) for o in own)


_NO_MODULE = "another module computes with its weight, and more besides"


def never_offered(block: Block, op: FusedOp) -> tuple[tuple[Choice, str], ...]:
    """Choices that an op of its kind could have and this one has not at any degrees, each with the reason."""
    offered = {option.choice for option in options(block, op)}
    match op:
        case Attention() | Mixer():
            why = op.unsplit or "its q, k and v do not come from projections in a module that was looked at"
            found: tuple[tuple[Choice, str], ...] = ((0, why),)
        case ExpertsLinear():
            why = "its experts are not one tensor, or its module takes them one by one"
            found = ((0, why), (1, why))
        case Linear() if op.follows is None and not is_module(block, op):
            found = ((0, _NO_MODULE), (1, _NO_MODULE))
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
