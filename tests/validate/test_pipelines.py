"""Stages of five more families on four real ranks: even, uneven, as many as ranks; in float64 and in float32."""

from dataclasses import replace

import pytest

from autoshard import catalogue
from autoshard.tracing import trace_source
from autoshard.validate import ModelJob, ValidationReport, validate
from autoshard.validate.cases import pipeline_cases

FAMILIES = ("mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v3", "gpt-oss-120b", "gpt-moe-1.6t", "qwen3-next-80b-a3b")

DTYPES = {"qwen3-next-80b-a3b": ("float64",)}
"""Its unsharded float32 logits are themselves 1.7e-5 away from float64's, farther than float32 cases may be apart."""


def job(family: str) -> ModelJob:
    """Every named pipeline point; where there are more layers than two, all but one on either side as well."""
    source = catalogue.find(family).reduced(tp=4, ep=4, etp=4, nproc=4)
    graph = trace_source(source)
    layers = len(graph.layers)
    cases = list(pipeline_cases(graph, 4))
    for case in list(cases):
        if layers > 2 and case.name.startswith("pp2_x_tp"):
            for stages in ((1, layers - 1), (layers - 1, 1)):
                strategy = replace(case.strategy, stages=stages)
                cases.append(case.model_copy(update={"name": f"{case.name} {stages}", "strategy": strategy}))
    named = tuple(c.model_copy(update={"name": f"{family}: {c.name}"}) for c in cases)
    return ModelJob(source=source.to_dict(), graph=graph, cases=named, dtypes=DTYPES.get(family))


@pytest.fixture(scope="module")
def reports() -> tuple[ValidationReport, ...]:
    return validate([job(family) for family in FAMILIES], nproc=4, timeout_s=1200)


@pytest.mark.wide
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("family", FAMILIES)
def test_stages(reports: tuple[ValidationReport, ...], family: str) -> None:
    mine = [r for r in reports if r.name.startswith(f"{family}: ")]
    assert {r.dtype for r in mine} == set(DTYPES.get(family, ("float32", "float64"))) and len(mine) >= 4
    failed = [f"{r.name} {r.dtype}: {r.difference}" for r in mine if not r.passed]
    assert not failed, "\n".join(failed)
    if family == "deepseek-v3":  # 3 dense layers, then one of experts
        assert {"pp/megatron", "pp2_x_tp/megatron (1, 3)", "pp2_x_tp/megatron (3, 1)"} <= {
            r.name.removeprefix(f"{family}: ") for r in mine
        }
