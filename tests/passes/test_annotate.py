"""Every parameter node of the graph carries exactly the plan's placements; every fused op its layouts."""

import pytest
from torch import nn
from torch.distributed.tensor import Replicate, Shard

from autoshard import Plan, autoshard, catalogue
from autoshard.errors import PlanMismatchError
from autoshard.passes import KEY, OpAnnotation, ParameterAnnotation, annotate
from autoshard.tracing import export_graph, trace_model


@pytest.fixture(scope="module")
def small() -> nn.Module:
    """A reduced Mixtral on the meta device."""
    return catalogue.find("mixtral-8x7b").reduced(tp=2, ep=2, etp=2, nproc=4).build()


@pytest.fixture(scope="module")
def small_plan(small: nn.Module) -> Plan:
    """Its plan at degrees that shard attention and experts."""
    return autoshard(small, "H100x4", search="exact", fix="tp=4,ep=2,etp=2", pin="q=0,k=0,v=0,o=1,experts_up=0")


def test_every_parameter_is_annotated_as_the_plan_says(small: nn.Module, small_plan: Plan) -> None:
    exported = export_graph(small)
    annotated = annotate(exported.module, small_plan)
    assert annotated is exported.module
    seen = {}
    for node in annotated.graph.nodes:
        note = node.meta.get(KEY)
        if isinstance(note, ParameterAnnotation):
            assert note.fqn == exported.parameters[node.name]
            seen[note.fqn] = note
    assert seen.keys() == dict(small.named_parameters()).keys() == small_plan.placements.keys()
    for fqn, note in seen.items():
        assert note.placements == small_plan.placements[fqn]
        assert note.mesh_dims == small_plan.mesh_for(fqn).mesh_dim_names
    q = seen["model.layers.1.self_attn.q_proj.weight"]
    assert (q.block, q.op, q.mesh_dims, q.placements) == ("layers", "q", ("dp", "tp"), (Replicate(), Shard(0)))


def test_ops_carry_choice_layouts_and_collectives(small: nn.Module, small_plan: Plan) -> None:
    traced = trace_model(small, name="small")
    nodes = annotate(traced.exported.module, small_plan, traced.placed).graph.nodes
    notes = {n.name: n.meta[KEY] for n in nodes if isinstance(n.meta.get(KEY), OpAnnotation)}
    calls = {n.name for n in nodes if n.op == "call_function"}
    assert notes.keys() == calls & traced.placed.keys()
    o = next(note for note in notes.values() if note.op == "o")
    assert (o.choice, o.needs, o.yields) == (1, ("sharded",), "partial")
    assert [c.axis for c in o.collectives] == ["tp"]


def test_ops_are_found_without_the_trace(small: nn.Module, small_plan: Plan) -> None:
    traced = trace_model(small, name="small")
    with_trace = {k: v for k, v in traced.placed.items() if not k.startswith("p_")}
    found = {
        n.name: (n.meta[KEY].block, n.meta[KEY].op)
        for n in annotate(traced.exported.module, small_plan).graph.nodes
        if isinstance(n.meta.get(KEY), OpAnnotation)
    }
    # Residual additions have neither parameters nor a core of their own.
    assert found == {k: v for k, v in with_trace.items() if not v[1].endswith("_add")}


def test_another_models_graph_is_refused(small: nn.Module, small_plan: Plan) -> None:
    other = export_graph(catalogue.find("olmoe-1b-7b").reduced(tp=2, ep=2, etp=2, nproc=4).build())
    with pytest.raises(PlanMismatchError, match="is not in the plan of"):
        annotate(other.module, small_plan)
    fewer = nn.ModuleDict({k: v for k, v in small.model.named_children() if k == "norm"})
    with pytest.raises(PlanMismatchError, match="the graph has no parameter"):
        annotate(_empty_graph(fewer), small_plan)


def _empty_graph(root: nn.Module):  # type: ignore[no-untyped-def]
    from torch import fx

    graph = fx.Graph()
    graph.output(())
    return fx.GraphModule(root, graph)
