"""The compiler-pass view of a plan: every node of the model's fx graph learns what the plan says of it.

After ``annotate(graph_module, plan)`` a node's ``meta["autoshard"]`` is

- a `ParameterAnnotation` on every parameter (placeholder or ``get_attr``): its DTensor placements and their submesh;
- an `OpAnnotation` on the node that computes a fused op: its choice, layouts in and out, and the collectives between.

Nodes in between (views, rope, masks) belong to no op and are left alone. A later pass can lower the annotations to
redistributions; `autoshard.emit` executes the same plan at module boundaries.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from torch import fx
from torch.distributed.tensor.placement_types import Placement

from autoshard.errors import PlanMismatchError
from autoshard.passes.parameters import ParameterNames
from autoshard.plan import PlanData, PlannedCollective

KEY = "autoshard"
"""Where the annotation stands in a node's meta."""

_PASSING = {
    "alias",
    "contiguous",
    "detach",
    "expand",
    "permute",
    "reshape",
    "t",
    "to",
    "transpose",
    "unsqueeze",
    "view",
}
"""Ops that hand a parameter on to what computes with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterAnnotation:
    """A parameter: the op that owns it, and a placement per dim of its submesh."""

    block: str
    op: str
    fqn: str
    mesh_dims: tuple[str, ...]
    placements: tuple[Placement, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpAnnotation:
    """A fused op: what it needs per input, yields, and delivers after its collectives, as layouts over its axis."""

    block: str
    op: str
    kind: str
    choice: int | None
    needs: tuple[str, ...]
    yields: str
    delivered: str
    collectives: tuple[PlannedCollective, ...]


class Plan(Protocol):
    """What is read of a plan (`autoshard.Plan`)."""

    data: PlanData
    placements: dict[str, tuple[Placement, ...]]

    def mesh_for(self, fqn: str) -> Any:
        """The submesh of a parameter."""
        ...


def annotate(
    graph_module: fx.GraphModule, plan: Plan, placed: Mapping[str, tuple[str, str]] | None = None
) -> fx.GraphModule:
    """Write the plan's placements and layouts into the meta of a graph's nodes; the module itself is returned.

    Args:
        graph_module: The graph of the plan's model: ``autoshard.tracing.export_graph(model).module``, or that of
            ``torch.export`` before or after lifting.
        plan: The plan.
        placed: (block, op) of nodes by name, as ``autoshard.tracing.trace_model(model).placed`` has it. Without it, ops
            with parameters are found by the nodes that compute with those, and attention by its node; residual
            additions and activations then stay unannotated.

    Raises:
        PlanMismatchError: if the graph lacks a parameter of the plan, or has one that the plan does not know.
    """
    owners = _owners(plan.data)
    names = ParameterNames(owners)
    found: dict[fx.Node, str] = {}
    for node in graph_module.graph.nodes:
        fqn = names.fqn(node)
        if fqn is not None:
            found[node] = fqn
            block, op = owners[fqn]
            node.meta[KEY] = ParameterAnnotation(
                block=block,
                op=op,
                fqn=fqn,
                mesh_dims=tuple(plan.mesh_for(fqn).mesh_dim_names),
                placements=plan.placements[fqn],
            )
        elif node.op == "placeholder" and str(node.target).startswith("p_"):
            raise PlanMismatchError(f"the graph's parameter {node.target} is not in the plan of {plan.data.model.name}")
    shared = {p.fqn for _, _, _, p in plan.data.graph.parameters() if p.shared_with is not None}
    missing = [fqn for fqn in owners if fqn not in shared and fqn not in set(found.values())]
    if missing:
        raise PlanMismatchError(f"the graph has no parameter {missing[0]}, which the plan places")
    ops = {
        (block, op.name): OpAnnotation(block=block, op=op.name, **{n: getattr(op, n) for n in _COPIED})
        for block, listed in plan.data.ops.items()
        for op in listed
    }
    for node, where in _anchors(graph_module, plan.data, found, owners, placed).items():
        node.meta[KEY] = ops[where]
    return graph_module


_COPIED = ("kind", "choice", "needs", "yields", "delivered", "collectives")


def _owners(data: PlanData) -> dict[str, tuple[str, str]]:
    """(block, op) of every parameter; an alias that two ops hold under one name is the owner's."""
    found: dict[str, tuple[str, str]] = {}
    for block, op, _, param in data.graph.parameters():
        if param.shared_with is None:
            found[param.fqn] = (block.name, op.name)
        else:
            found.setdefault(param.fqn, (block.name, op.name))
    return found


def _anchors(
    graph_module: fx.GraphModule,
    data: PlanData,
    parameters: Mapping[fx.Node, str],
    owners: Mapping[str, tuple[str, str]],
    placed: Mapping[str, tuple[str, str]] | None,
) -> dict[fx.Node, tuple[str, str]]:
    """The nodes that compute fused ops."""
    calls = [n for n in graph_module.graph.nodes if n.op == "call_function"]
    if placed is not None:
        return {n: placed[n.name] for n in calls if n.name in placed}
    users: dict[fx.Node, set[tuple[str, str]]] = {}
    for node, fqn in parameters.items():
        for user in _computing_users(node):
            users.setdefault(user, set()).add(owners[fqn])
    # A node that reads parameters of several ops is a whole folded layer, not an op.
    found = {user: next(iter(where)) for user, where in users.items() if len(where) == 1}
    cores = {
        block.fqn(op.fqn, i): (block.name, op.name)
        for block in data.graph.components()
        for op in block.ops
        if op.kind == "attention"
        for i in range(block.repeat)
    }
    for node in calls:
        if "scaled_dot_product_attention" in str(node.target):
            owner = _module_of(node)
            where = next((at for fqn, at in cores.items() if owner == fqn or owner.endswith(f".{fqn}")), None)
            if where is not None:
                found[node] = where
    return found


def _computing_users(node: fx.Node) -> list[fx.Node]:
    found: list[fx.Node] = []
    for user in node.users:
        if user.op != "call_function" or not user.users:
            continue  # the output, and assertions about tensors
        name = str(getattr(user.target, "overloadpacket", user.target)).rpartition(".")[2]
        found += _computing_users(user) if name in _PASSING else [user]
    return found


def _module_of(node: fx.Node) -> str:
    """FQN of the innermost module that ran the node, wrapper included."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    return str(stack[-1][0]) if stack else ""
