"""Making a live model run under a strategy: parameters become DTensors, modules run on their shards.

The route is module boundaries. Every module that owns a fused op gets a forward that brings its input to the layout
the op's choice needs, runs the module's own forward on local shards, and takes the output to the layout it is
delivered in. Nothing else of the model is touched, and no collective runs that the plan does not list.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from autoshard.emit.attention import emit_attention
from autoshard.emit.axes import PIPELINE, check_mesh, mesh_axes
from autoshard.emit.embedding import emit_embedding
from autoshard.emit.experts import ExpertsItems, emit_experts
from autoshard.emit.generation import emit_generate
from autoshard.emit.heads import emit_heads, head_leaders, used_by
from autoshard.emit.linear import emit_linear
from autoshard.emit.local import LocalWidth, replace_forward
from autoshard.emit.norm import emit_norm
from autoshard.emit.opaque import emit_opaque
from autoshard.emit.own_experts import emit_own_experts, held_here, keep_experts
from autoshard.emit.parameters import check_parameters, shard_parameters
from autoshard.emit.pipeline import LogitsOn, emit_pipeline, keep_stage
from autoshard.emit.router import emit_router
from autoshard.emit.steps import Axes
from autoshard.emit.tokens import carry_inside, split_input
from autoshard.emit.whole import emit_local
from autoshard.errors import InvalidInputError, PlanMismatchError
from autoshard.ir import Block, ExpertsLinear, Linear, OpGraph
from autoshard.sharding import (
    Layout,
    ResolvedOp,
    Strategy,
    mesh_of,
    resolve_graph,
    stage_instances,
    stage_placements,
    stages_of,
    strategy_reasons,
)
from autoshard.sharding.padding import PLAIN
from autoshard.sharding.rules.experts import is_stacked
from autoshard.sharding.space import is_module, output_grain, tensor_axes
from autoshard.sharding.wider import check_runs

_APPLIED = "_autoshard_applied"

M = TypeVar("M", bound=nn.Module)


def apply(model: M, graph: OpGraph, strategy: Strategy, mesh: DeviceMesh, *, logits_on: LogitsOn = "last") -> M:
    """Shard ``model`` in place under ``strategy`` on ``mesh`` (of `device_mesh`) and return it.

    Works on meta models too. Parameters stop asking for gradients: this is for inference. With attention data
    parallelism (dp > 1) every dp rank feeds its own sequences, and all ranks run the same number of tokens. With
    pipeline stages (pp > 1) a rank keeps its own layers, every rank is called with the same arguments, and the logits
    come out on the last stage (``logits_on="last"``, None elsewhere) or, by a broadcast of them, on all (``"all"``).

    Raises:
        PlanMismatchError: another model, another mesh, or a model that a plan was applied to already.
        InvalidInputError: a strategy that is not legal for the graph, or is simulated only.
    """
    if getattr(model, _APPLIED, False):
        raise PlanMismatchError("a plan was applied to this model already; build the model anew to apply another")
    check_parameters(model, graph)
    reasons = strategy_reasons(graph, strategy)
    if reasons:
        raise InvalidInputError(reasons[0].message)
    check_runs(graph, strategy)
    stage = mesh_of(graph, strategy.degrees)
    check_mesh(mesh, stage, strategy.degrees)
    axes = mesh_axes(mesh, stage)
    resolved = resolve_graph(graph, strategy)
    own = stages_of(graph, strategy)[mesh.get_local_rank(PIPELINE) if strategy.degrees.pp > 1 else 0]
    if own.count > 1:
        keep_stage(model, graph, strategy, own, mesh.device_type)
    placements = stage_placements(graph, strategy, own)
    keep_experts(model, stage_instances(graph, own), placements, axes)
    shard_parameters(model, held_here(placements, axes), mesh, stage, axes)
    for block, instance in stage_instances(graph, own):
        _emit_block(model, block, instance, resolved[block.name], axes)
    if strategy.residual is Layout.TOKENS and axes["tp"].size > 1:
        split_input(model.get_submodule(graph.blocks[graph.layers[0]].instances[0]), axes["tp"])
    if own.count > 1:
        emit_pipeline(model, graph, strategy, own, mesh, logits_on)
    emit_generate(model, strategy.degrees, axes, mesh)
    setattr(model, _APPLIED, True)
    return model


def _emit_block(model: nn.Module, block: Block, instance: int, items: Sequence[ResolvedOp], axes: Axes) -> None:
    by_kind: dict[str, Callable[[nn.Module, ResolvedOp], None]] = {
        "embedding": lambda module, item: emit_embedding(module, item, axes),
        "norm": lambda module, item: emit_norm(module, item, axes),
        "linear": lambda module, item: emit_linear(
            module, item, axes, tensor_axes(block, item.op), output_grain(block, item.op) or PLAIN
        ),
        "attention": lambda module, item: emit_attention(module, item, axes),
        "router": lambda module, item: emit_router(module, item, axes),
        "opaque": lambda module, item: emit_opaque(module, item, axes),
        "experts": lambda module, item: _emit_routed(module, item, items, axes),
    }
    leaders = list(head_leaders(items))
    headed = {i.op.name for leader in leaders for i in used_by(leader, items)}
    for item in items:
        if isinstance(item.op, Linear) and not is_module(block, item.op):
            continue
        loose = isinstance(item.op, ExpertsLinear) and not is_stacked(item.op)
        if item.op.kind not in by_kind or not item.op.inputs or item.op.name in headed or loose:
            continue  # additions and activations have no module of their own; unused parameters compute nothing
        by_kind[item.op.kind](model.get_submodule(block.fqn(_owner(item), instance)), item)
    for leader in leaders:
        emit_heads(model, block, instance, leader, items, axes)
    for item in items:
        if item.op.name not in headed:
            _emit_used_inside(model, block, instance, item)
    for item in items:
        if not isinstance(item.op, ExpertsLinear) or item.op.stage != "down":
            continue
        if not is_stacked(item.op):
            emit_own_experts(model, block, instance, items, item, axes)
        if item.op.form in ("routed", "batched"):
            _keep_width_around(model, block, instance, item, items, axes)


def _emit_used_inside(model: nn.Module, block: Block, instance: int, item: ResolvedOp) -> None:
    """Parameters that an op's module reads besides the one that owns the op: sinks, what a mixer scans with."""
    op = item.op
    owners = dict.fromkeys(p.fqn.rpartition(".")[0] for p in op.params)
    if isinstance(op, Linear) and op.follows is None and not is_module(block, op):
        emit_local(
            model.get_submodule(block.fqn(op.fqn, instance)), [model.get_submodule(block.fqn(_owner(item), instance))]
        )
        return
    if op.kind not in ("attention", "latent_attention", "mixer", "combine"):
        owners.pop(_owner(item), None)  # its own emission has done that
    if not owners or op.kind not in ("attention", "latent_attention", "mixer", "combine", "router"):
        return
    module = model.get_submodule(block.fqn(op.fqn, instance))
    emit_local(module, [model.get_submodule(block.fqn(owner, instance)) for owner in owners])


def _owner(item: ResolvedOp) -> str:
    """The module that owns the op's parameters, else the one it was traced in."""
    return item.op.params[0].fqn.rpartition(".")[0] if item.op.params else item.op.fqn


def _emit_routed(module: nn.Module, item: ResolvedOp, items: Sequence[ResolvedOp], axes: Axes) -> None:
    """Emit the experts module once, at its up matrix, with the activation and the down matrix that follow it."""
    if not isinstance(item.op, ExpertsLinear) or item.op.stage == "down":
        return
    act = next(i for i in items if item.op.name in i.op.inputs)
    down = next(i for i in items if act.op.name in i.op.inputs)
    emit_experts(module, ExpertsItems(up=item, act=act, down=down), axes)


def _keep_width_around(
    model: nn.Module, block: Block, instance: int, down: ResolvedOp, items: Sequence[ResolvedOp], axes: Axes
) -> None:
    """Let the parent of an experts module give its output the width, and the tokens, it is delivered in.

    Models write ``experts(x).reshape(batch, sequence, hidden)`` with the width of the module's *input*, which differs
    when input and output have different layouts.
    """
    assert isinstance(down.op, ExpertsLinear)
    up = next(i for i in items if isinstance(i.op, ExpertsLinear) and i.op.stage == "up" and i.op.fqn == down.op.fqn)
    producer = next(i for i in items if i.op.name == up.op.inputs[0])
    parent = model.get_submodule(block.fqn(down.op.fqn, instance).rpartition(".")[0])
    whole = down.op.out_dim.size
    if down.delivered is Layout.TOKENS and axes["tp"].size > 1:
        carry_inside(parent, axes["tp"])
    width = {Layout.REPLICATED: whole, Layout.SHARDED: whole // axes["tp"].size, Layout.TOKENS: whole}
    before, after = width[producer.delivered], width[down.delivered]
    if before == after == whole:
        return
    # A forward takes the width of its input, or (GraniteMoE) knows the whole model's.
    full = whole if before == after else before

    def make(forward: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            with LocalWidth(full=full, local=after):
                return forward(*args, **kwargs)

        return run

    replace_forward(parent, make)
