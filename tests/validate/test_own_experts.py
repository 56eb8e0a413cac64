"""Experts that the model runs itself: lists of modules and batches (Llama-4) over ep and etp, on simulated ranks."""

import pytest

from autoshard import catalogue
from autoshard.ir import ExpertsLinear, OpGraph
from autoshard.sharding import Degrees, degree_reasons, place_all, strategy_reasons
from autoshard.sharding.patterns import pattern_strategy
from autoshard.tracing import ModelSource, trace_source
from autoshard.validate import Case, ModelJob, validate
from tests.validate.test_plain import graph_of, source

POINTS = (Degrees(tp=4, etp=4), Degrees(tp=4, ep=4), Degrees(tp=4, ep=2, etp=2), Degrees(dp=2, tp=2, etp=4, batch=2))


def test_each_rank_holds_some_of_a_list() -> None:
    graph = graph_of("WhereLoop")
    up = next(op for _, op in graph.all_ops() if isinstance(op, ExpertsLinear))
    assert up.form == "listed"
    strategy = pattern_strategy(graph, Degrees(tp=4, ep=2, etp=2), "megatron")
    assert not strategy_reasons(graph, strategy)
    placed = {p.fqn: p for p in place_all(graph, strategy)}
    # 8 experts over ep=2: 0 to 3 on the first, 4 to 7 on the second; 48 rows over etp=2 are 24.
    held = [placed[f"layers.0.moe.experts.{i}.w1.weight"] for i in range(8)]
    assert [p.held_by for p in held] == [("ep", 0)] * 4 + [("ep", 1)] * 4
    assert held[0].mesh_dims == ("etp",) and (held[0].placements[0].kind, held[0].placements[0].dim) == ("shard", 0)
    assert placed["layers.0.moe.experts.0.w2.weight"].placements[0].dim == 1
    (reason,) = degree_reasons(graph, pp=1, dp=2, tp=2, ep=2)
    assert reason.rule == "own experts" and "has its own tokens only; use dp=1" in reason.message


def jobs_of(model: ModelSource, graph: OpGraph) -> ModelJob:
    cases = []
    for degrees in POINTS:
        if degree_reasons(graph, pp=1, dp=degrees.dp, tp=degrees.tp, ep=degrees.ep):
            continue
        for pattern in ("megatron", "gather_out", "replicated"):
            for residual in (None, 0, 1):
                s = pattern_strategy(graph, degrees, pattern, residual=residual)
                if s.choice("model/residual") == residual and not strategy_reasons(graph, s):
                    name = f"dp{degrees.dp} ep{degrees.ep} {pattern} residual {residual}"
                    cases.append(Case(name=name, strategy=s))
    return ModelJob(source=model.to_dict(), graph=graph, cases=tuple(cases))


@pytest.mark.wide
@pytest.mark.parametrize("kind", ["WhereLoop", "MaskLoop", "DenseLoop", "HitLoop", "Fused", "Einsum", "llama-4-scout"])
def test_what_is_offered_equals_the_unsharded_model(kind: str) -> None:
    if kind in ("WhereLoop", "MaskLoop", "DenseLoop", "HitLoop", "Fused", "Einsum"):
        model: ModelSource = source(kind)
        graph = graph_of(kind)
    else:
        model = catalogue.find(kind).reduced(tp=4, ep=4, etp=4, nproc=4)
        graph = trace_source(model)
    job = jobs_of(model, graph)
    split = {c.strategy.degrees.ep for c in job.cases}
    assert split == ({1} if kind in ("Fused", "Einsum") else {1, 2, 4})
    reports = validate([job], nproc=4, dtypes=("float64",), simulated=True, timeout_s=800)
    failed = [f"{r.name}: {r.difference}" for r in reports if not r.passed]
    assert not failed, "\n".join(failed)
