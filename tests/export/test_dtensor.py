"""Standalone files on simulated ranks: the unsharded model's logits, the plan's collectives, the plan's bytes.

What is compared is all that `autoshard.validate` compares, with the exported file in place of `apply`.
"""

import ast
from dataclasses import replace

import pytest

from autoshard.api.nearest import nearest_strategy
from autoshard.api.solve import make_simulator, solve
from autoshard.export import TARGETS
from autoshard.export.runtime_source import runtime_source
from autoshard.hardware import parse_cluster
from autoshard.ir import ExpertsLinear
from autoshard.sharding import Degrees
from autoshard.sharding.legality import choice_key
from autoshard.sharding.patterns import pattern_strategy
from autoshard.sharding.strategy import DISPATCH, RESIDUAL
from autoshard.validate import Case, ModelJob, validate
from autoshard.validate.cases import default_cases
from autoshard.workload import Workload
from tests.export.exported import file_of
from tests.validate.sources import SOURCES, graph_of
from tests.validate.test_plain import graph_of as plain_graph
from tests.validate.test_plain import source as plain_source

TARGET = TARGETS["dtensor"]
HOOK = "tests.export.exported:in_place_of_apply"


def run(name: str, cases: list[Case], nproc: int) -> int:
    """Run cases with the exported file; how many there were."""
    hooked = tuple(case.model_copy(update={"hook": HOOK}) for case in cases)
    job = ModelJob(source=SOURCES[name].to_dict(), graph=graph_of(name), cases=hooked)
    reports = validate([job], nproc=nproc, dtypes=("float32",), timeout_s=600, simulated=True)
    failed = [(r.name, r.differences[:2]) for r in reports if not r.passed]
    assert not failed, failed
    return len(reports)


def test_tokens_exchanged_with_experts() -> None:
    graph = graph_of("mixtral")
    degrees = Degrees(dp=2, tp=2, ep=2, etp=2, batch=2)
    cases = [Case(name="exchange", strategy=pattern_strategy(graph, degrees, "megatron", dispatch=0))]
    assert run("mixtral", cases, 4) == 1


def test_a_module_that_runs_on_its_heads() -> None:
    graph = graph_of("fused-gpt")
    strategy = pattern_strategy(graph, Degrees(tp=2, etp=2), "megatron")
    assert "heads(" in file_of(graph, strategy)
    assert run("fused-gpt", [Case(name="tp", strategy=strategy)], 2) == 1


@pytest.mark.wide
@pytest.mark.parametrize("kind", ["WhereLoop", "Fused", "Einsum"])
def test_experts_that_the_models_own_code_runs_whole(kind: str) -> None:
    graph = plain_graph(kind)
    cases = []
    for pattern in ("megatron", "gather_out"):
        found = pattern_strategy(graph, Degrees(tp=2, etp=2), pattern)
        own = {choice_key(graph, b, op): None for b, op in graph.all_ops() if isinstance(op, ExpertsLinear)}
        if kind == "WhereLoop":
            assert "run by the model's own code, and split" in TARGET.reasons(graph, found)[0]
        strategy = replace(found, choices=tuple({**dict(found.choices), **own}.items()))
        cases.append(Case(name=pattern, strategy=strategy, hook=HOOK))
        sharded = replace(strategy, choices=tuple({**dict(strategy.choices), RESIDUAL: 0}.items()))
        assert any(r.startswith(f"{RESIDUAL}=0: the model's own code runs") for r in TARGET.reasons(graph, sharded))
    job = ModelJob(source=plain_source(kind).to_dict(), graph=graph, cases=tuple(cases))
    reports = validate([job], nproc=2, dtypes=("float64",), timeout_s=300, simulated=True)
    assert [(r.passed, r.difference) for r in reports] == [(True, None)] * 2
    found = nearest_strategy(make_simulator(graph, parse_cluster("H100x2"), Workload()), "dtensor")
    assert found.strategy is not None and not TARGET.reasons(graph, found.strategy)


@pytest.mark.wide
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", ["mixtral", "qwen3-next", "gpt-moe", "qwen3-moe", "fused-gpt", "llama-tied", "olmoe"])
def test_every_pattern_that_can_be_exported(name: str) -> None:
    graph = graph_of(name)
    cases = [c for c in default_cases(graph, 4) if not TARGET.reasons(graph, c.strategy)]
    assert run(name, cases, 4) > 10


def test_a_file_holds_only_the_parts_it_uses() -> None:
    graph = graph_of("llama")
    dense = file_of(graph, pattern_strategy(graph, Degrees(tp=2, etp=2), "megatron"))
    tree = ast.parse(dense)
    defined = {n.name for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    assert {"linear", "embedding", "attention", "apply", "flattened"} <= defined
    assert not {"experts", "send_to_experts", "heads"} & defined
    # Everything that is used is imported, defined or built in, and no import is of this package.
    assert "autoshard." not in dense.partition('"""\n\nfrom')[2]
    imports, whole = runtime_source("experts(send_to_experts, heads)")
    assert all(f"def {name}(" in whole for name in ("experts", "send_to_experts", "heads", "flattened", "go"))
    compile(f"{imports}\n{whole}", "runtime", "exec")


def test_what_a_file_cannot_say_has_a_nearest_plan() -> None:
    graph = graph_of("mixtral")
    staged = pattern_strategy(graph, Degrees(pp=2, tp=2, etp=2, batch=2), "megatron")
    assert TARGET.reasons(graph, staged) == ("pp=2: the file runs one stage; pipelines are not exported",)
    tokens = pattern_strategy(graph, Degrees(tp=4, etp=4), "megatron", residual=1)
    assert TARGET.reasons(graph, tokens)[0].startswith(f"{RESIDUAL}=1: the file keeps a residual whole")
    # The nearest is the optimum of what is left, which no single strategy of it beats.
    cluster = parse_cluster("H100x4")
    found = nearest_strategy(make_simulator(graph, cluster, Workload()), "dtensor")
    assert found.strategy is not None and TARGET.reasons(graph, found.strategy) == ()
    for choice in (None, 0):
        simulator = make_simulator(
            graph, cluster, Workload(), fixed={"pp": 1}, pinned={RESIDUAL: None, DISPATCH: choice}
        )
        best = solve(simulator, algorithm="exact")
        assert best.found <= found.tokens_per_s_per_gpu * (1 + 1e-12)
