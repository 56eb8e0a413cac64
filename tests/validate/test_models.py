"""Every pattern, and random strategies, on four real ranks: the unsharded model's logits, the derived traffic.

All in one launch, because starting ranks is slow. ``AUTOSHARD_RANDOM_STRATEGIES=40`` draws more of them.
"""

import os
from dataclasses import replace

import pytest

from autoshard.sharding import Degrees
from autoshard.sharding.patterns import pattern_strategy
from autoshard.validate import Case, ModelJob, ValidationReport, default_cases, validate
from autoshard.validate.cases import pipeline_cases
from tests.validate.sources import SOURCES, graph_of
from tests.validate.strategies import random_strategies

NPROC = 4
COUNT = int(os.environ.get("AUTOSHARD_RANDOM_STRATEGIES", "8"))
SEED = int(os.environ.get("AUTOSHARD_RANDOM_SEED", "20"))
MAIN = ("mixtral", "qwen3-moe", "gpt-moe")
OTHER = ("olmoe", "llama", "llama-biases", "llama-tied", "mixtral-2-kv-heads", "olmoe-2-kv-heads")
STAGED = {
    "mixtral": ("pp2_x_tp/megatron/sharded_residual", "pp2_x_ep/megatron"),
    "qwen3-moe": ("pp2_x_tp/megatron",),
    "gpt-moe": ("pp2_x_dp/megatron",),
}
RANDOM = (*MAIN, "olmoe-2-kv-heads", "llama-biases", "llama-tied")


def job(model: str, cases: list[Case], dtype: str) -> ModelJob:
    named = tuple(c.model_copy(update={"name": f"{model}: {c.name}"}) for c in cases)
    return ModelJob(source=SOURCES[model].to_dict(), graph=graph_of(model), cases=named, dtypes=(dtype,))


def uneven_cases() -> list[Case]:
    degrees = Degrees(pp=2, tp=2, ep=2, batch=2)
    even = pattern_strategy(graph_of("mixtral-3-layers"), degrees, "gather_out")
    return [Case(name=str(stages), strategy=replace(even, stages=stages)) for stages in ((), (1, 2))]


@pytest.fixture(scope="module")
def reports() -> tuple[ValidationReport, ...]:
    jobs = []
    for model in MAIN:
        patterns = [c for c in default_cases(graph_of(model), NPROC) if c.strategy.degrees.pp == 1]
        # A sharded residual is a variant of these patterns: in float64 and in the random strategies only.
        jobs.append(job(model, [c for c in patterns if "sharded_residual" not in c.name], "float32"))
        # Stages: all points once (the rest and other families in test_pipelines, which is wide), in float64.
        staged = [c for c in pipeline_cases(graph_of(model), NPROC) if c.name in STAGED[model]]
        jobs.append(job(model, patterns + staged, "float64"))
    # 3 layers: 2 and 1 as they are dealt, 1 and 2 by hand.
    jobs.append(job("mixtral-3-layers", uneven_cases(), "float64"))
    for model in OTHER:
        jobs.append(
            job(model, [c for c in default_cases(graph_of(model), NPROC) if c.name.startswith("tp/")], "float64")
        )
    for model in RANDOM:
        drawn = random_strategies(graph_of(model), NPROC, COUNT, SEED)
        cases = [Case(name=f"random, seed {SEED}, no {i}", strategy=s) for i, s in enumerate(drawn)]
        jobs.append(job(model, cases, "float64"))
    return validate(jobs, nproc=NPROC, timeout_s=540 + 10 * COUNT)


def assert_all_passed(reports: list[ValidationReport]) -> None:
    assert reports
    failed = [f"{r.name} {r.dtype} {r.degrees}: {r.difference}" for r in reports if not r.passed]
    assert not failed, "\n".join(failed)
    assert all(r.collectives_match and r.parameter_bytes_match for r in reports)
    assert all(r.logits_max_rel_err <= r.tolerance for r in reports)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("model", MAIN)
def test_every_pattern(reports: tuple[ValidationReport, ...], model: str, dtype: str) -> None:
    mine = [r for r in reports if r.name.startswith(f"{model}: ") and r.dtype == dtype and "random" not in r.name]
    assert_all_passed(mine)
    points = {r.name.removeprefix(f"{model}: ").partition("/")[0] for r in mine}
    assert all(r.expected for r in mine)
    one_stage = {"tp", "ep", "ep_x_etp", "attention_dp_ep", "attention_dp_ep_x_etp"}
    staged = {name.partition("/")[0] for name in STAGED[model]} if dtype == "float64" else set()
    assert points == one_stage | staged
    for report in mine:
        stages = {t.stage for t in report.expected if t.kind == "send_recv"}
        assert stages == ({0} if report.name.partition(": ")[2].startswith("pp2") else set())


@pytest.mark.timeout(900)
def test_uneven_stages(reports: tuple[ValidationReport, ...]) -> None:
    mine = [r for r in reports if r.name.startswith("mixtral-3-layers: ")]
    assert len(mine) == 2
    assert_all_passed(mine)
    # 4 sequences, 2 microbatches of 2: the prompt of 6 tokens is handed over as 2 x 6 x 64 x 8 = 6144 bytes, twice
    sent = [t for t in mine[0].observed if t.kind == "send_recv" and t.step == 0]
    assert [(t.stage, t.axis, t.num_bytes, t.count) for t in sent] == [(0, "pp", 6144, 2)]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("model", OTHER)
def test_families_biases_ties_and_copied_kv_heads(reports: tuple[ValidationReport, ...], model: str) -> None:
    assert_all_passed([r for r in reports if r.name.startswith(f"{model}: tp/")])


@pytest.mark.timeout(900)
@pytest.mark.parametrize("model", RANDOM)
def test_random_strategies(reports: tuple[ValidationReport, ...], model: str) -> None:
    mine = [r for r in reports if r.name.startswith(f"{model}: random")]
    assert len(mine) == COUNT
    assert_all_passed(mine)
