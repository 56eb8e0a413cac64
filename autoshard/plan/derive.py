"""What of a plan follows from graph and strategy alone: mesh, placements, layouts, collectives, stages."""

from autoshard.ir import OpGraph
from autoshard.plan.schema import (
    MeshLayout,
    PlannedCollective,
    PlannedHandover,
    PlannedOp,
    PlannedPadding,
    PlannedParameter,
)
from autoshard.sharding import (
    Placement,
    Strategy,
    collectives,
    handovers,
    layers_per_stage,
    mesh_of,
    paddings,
    place_all,
    resolve_graph,
)
from autoshard.sharding.legality import choice_key
from autoshard.simulator.work import ACTIVATION_BYTES
from autoshard.workload import Workload


def mesh_layout(graph: OpGraph, strategy: Strategy) -> MeshLayout:
    """The mesh of one replica."""
    mesh = mesh_of(graph, strategy.degrees)
    views = {axis: names for axis, names in mesh.views if names}
    return MeshLayout(dims=(("pp", strategy.degrees.pp), *mesh.dims), views={"pp": ("pp",), **views})


def placement_text(placement: Placement) -> str:
    """``R``, ``S(dim)`` or ``S(dim, parts=n)``."""
    if placement.kind == "replicate":
        return "R"
    parts = f", parts={placement.packed}" if placement.packed > 1 else ""
    return f"S({placement.dim}{parts})"


def planned_parameters(graph: OpGraph, strategy: Strategy) -> dict[str, PlannedParameter]:
    """Every parameter of the model, once, in graph order."""
    return {
        p.fqn: PlannedParameter(mesh=p.mesh_dims, placements=tuple(placement_text(x) for x in p.placements))
        for p in place_all(graph, strategy)
    }


def step_tokens(strategy: Strategy, workload: Workload) -> tuple[int, int]:
    """(tokens, logit tokens) of one microbatch on one dp rank."""
    sequences = strategy.degrees.sequences
    return sequences * workload.tokens_per_sequence, sequences


def planned_ops(graph: OpGraph, strategy: Strategy, workload: Workload) -> dict[str, tuple[PlannedOp, ...]]:
    """Every fused op by block, with its layouts and the collectives of one microbatch at the workload's lengths."""
    tokens, logit_tokens = step_tokens(strategy, workload)
    listed = collectives(graph, strategy, tokens=tokens, logit_tokens=logit_tokens, activation_bytes=ACTIVATION_BYTES)
    at: dict[str, list[PlannedCollective]] = {}
    for c in listed:
        one = PlannedCollective(kind=c.kind, axis=c.axis, group_size=c.group_size, num_bytes=c.num_bytes, count=c.count)
        at.setdefault(c.where, []).append(one)
    resolved = resolve_graph(graph, strategy)
    return {
        block.name: tuple(
            PlannedOp(
                name=item.op.name,
                kind=item.op.kind,
                module=item.op.fqn,
                choice=None if item.option is None else strategy.choice(choice_key(graph, block, item.op)),
                needs=() if item.option is None else tuple(str(n) for n in item.option.needs),
                yields=str(item.delivered if item.option is None else item.option.yields),
                delivered=str(item.delivered),
                collectives=tuple(at.get(f"{block.name}/{item.op.name}", ())),
            )
            for item in resolved[block.name]
        )
        for block in graph.components()
    }


def planned_holders(graph: OpGraph, strategy: Strategy) -> dict[str, tuple[str, int]]:
    """Parameters that only ranks at one coordinate of an axis have; empty where every rank has a part of all."""
    return {p.fqn: p.held_by for p in place_all(graph, strategy) if p.held_by is not None}


def planned_padding(graph: OpGraph, strategy: Strategy) -> dict[str, tuple[PlannedPadding, ...]]:
    """What every op fills up, by ``<block>/<op>``; empty where everything divides."""
    return {
        key: tuple(PlannedPadding.model_validate(d.to_dict()) for d in dims)
        for key, dims in paddings(graph, strategy).items()
    }


def planned_handovers(graph: OpGraph, strategy: Strategy, workload: Workload) -> tuple[PlannedHandover, ...]:
    """What a rank of every stage but the last sends to the next, of one microbatch at the workload's lengths."""
    tokens, _ = step_tokens(strategy, workload)
    return tuple(
        PlannedHandover(
            kind=c.kind, axis=c.axis, from_stage=i, to_stage=i + 1, group_size=2, num_bytes=c.num_bytes, count=c.count
        )
        for i, c in enumerate(handovers(graph, strategy, tokens=tokens, activation_bytes=ACTIVATION_BYTES))
    )


def stages(graph: OpGraph, strategy: Strategy) -> tuple[int, ...]:
    """Layers per pipeline stage."""
    return layers_per_stage(graph, strategy)
