"""Every pattern, and random strategies, on four ranks: the unsharded model's logits, the derived traffic.

Simulated ranks run everything; real ones run every mechanism once, in one launch, because starting ranks is slow.
``AUTOSHARD_RANDOM_STRATEGIES=40`` draws more of them.
"""

import os
from dataclasses import replace

import pytest

from autoshard.sharding import Degrees
from autoshard.sharding.patterns import pattern_strategy
from autoshard.validate import Case, ModelJob, ValidationReport, default_cases, validate
from tests.validate.sources import SOURCES, graph_of
from tests.validate.strategies import random_strategies

NPROC = 4
COUNT = int(os.environ.get("AUTOSHARD_RANDOM_STRATEGIES", "4"))
SEED = int(os.environ.get("AUTOSHARD_RANDOM_SEED", "20"))
MAIN = ("mixtral", "qwen3-moe", "gpt-moe")
OTHER = ("olmoe", "qwen3-1-kv-head", "llama-biases", "llama-tied", "mixtral-2-kv-heads", "olmoe-2-kv-heads")
RANDOM = (*MAIN, "olmoe-2-kv-heads", "llama-biases", "llama-tied")
POINTS = {"tp", "ep", "ep_x_etp", "attention_dp_ep", "attention_dp_ep_x_etp"}


def job(model: str, cases: list[Case], dtype: str = "float64") -> ModelJob:
    return ModelJob(
        source=SOURCES[model].to_dict(), graph=graph_of(model), cases=tuple(cases), dtypes=(dtype,), lengths=(6, 1)
    )


def is_variant(name: str) -> bool:
    return "split_tokens" in name or "all_to_all" in name


def run(jobs: list[ModelJob], *, simulated: bool, nproc: int = NPROC) -> list[ValidationReport]:
    reports = validate(jobs, nproc=nproc, simulated=simulated, timeout_s=300 + 30 * COUNT)
    failed = [f"{r.name} {r.dtype} {r.degrees}: {r.difference}" for r in reports if not r.passed]
    assert reports and not failed, "\n".join(failed)
    assert all(r.collectives_match and r.parameter_bytes_match for r in reports)
    assert all(r.logits_max_rel_err <= r.tolerance for r in reports)
    return list(reports)


def points(reports: list[ValidationReport]) -> set[str]:
    assert all(r.expected for r in reports), "a pattern that sends nothing"
    return {r.name.partition("/")[0] for r in reports}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("model", MAIN)
def test_every_pattern(model: str) -> None:
    """All of the first model; of the others all over tp, and elsewhere the two that differ most."""
    patterns = list(default_cases(graph_of(model), NPROC))
    if model != MAIN[0]:
        patterns = [c for c in patterns if c.name.startswith("tp/") or c.name.endswith(("/megatron", "/gather_in"))]
    reports = run([job(model, patterns)], simulated=True)
    assert points(reports) == POINTS | {"pp2_x_tp", "pp2_x_dp", "pp2_x_ep"}
    for report in reports:
        stages = {t.stage for t in report.expected if t.kind == "send_recv"}
        assert stages == ({0} if report.name.startswith("pp2") else set())


@pytest.mark.timeout(900)
def test_uneven_stages() -> None:
    """3 layers: 2 and 1 as they are dealt, 1 and 2 by hand."""
    degrees = Degrees(pp=2, tp=2, ep=2, batch=2)
    even = pattern_strategy(graph_of("mixtral-3-layers"), degrees, "gather_out")
    cases = [Case(name=str(stages), strategy=replace(even, stages=stages)) for stages in ((), (1, 2))]
    reports = run([job("mixtral-3-layers", cases)], simulated=True)
    assert len(reports) == 2
    # 4 sequences, 2 microbatches of 2: the prompt of 6 tokens is handed over as 2 x 6 x 64 x 8 = 6144 bytes, twice
    sent = [t for t in reports[0].observed if t.kind == "send_recv" and t.step == 0]
    assert [(t.stage, t.axis, t.num_bytes, t.count) for t in sent] == [(0, "pp", 6144, 2)]


@pytest.mark.timeout(900)
def test_fewer_tokens_than_ranks() -> None:
    """One sequence: 5 tokens, then 1, on 4 ranks. Shares are uneven, and most ranks have none."""
    few = [c for c in default_cases(graph_of("mixtral"), NPROC) if c.strategy.degrees.group == NPROC]
    few = [c for c in few if c.strategy.degrees.dp == 1 and is_variant(c.name) and "megatron" in c.name]
    reports = run([job("mixtral", few).model_copy(update={"sequences": 1, "lengths": (5, 1)})], simulated=True)
    assert {r.name.rpartition("/")[2] for r in reports} == {"split_tokens", "all_to_all"}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("model", OTHER)
def test_families_biases_ties_and_copied_kv_heads(model: str) -> None:
    nproc = NPROC if model.endswith("2-kv-heads") else 2
    cases = [c for c in default_cases(graph_of(model), nproc) if c.name.startswith("tp/")]
    # Every pattern has the core by heads, kv heads copied where they do not go round, their norms with them.
    assert {value for c in cases for key, value in c.strategy.choices if key.endswith("/attention")} == {0}
    assert points(run([job(model, cases)], simulated=True, nproc=nproc)) == {"tp"}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("model", RANDOM)
def test_random_strategies(model: str) -> None:
    drawn = random_strategies(graph_of(model), NPROC, COUNT, SEED)
    cases = [Case(name=f"random, seed {SEED}, no {i}", strategy=s) for i, s in enumerate(drawn)]
    assert len(run([job(model, cases)], simulated=True)) == COUNT


@pytest.mark.timeout(900)
def test_every_mechanism_on_real_ranks() -> None:
    """Every kind of degrees with Megatron's pattern, the all-gather ones where they differ most, copied kv heads."""
    both = ("megatron/sharded_residual", "megatron")
    mixtral = [c for c in default_cases(graph_of("mixtral"), NPROC) if c.name.endswith(both)]
    gathers = [
        c for c in default_cases(graph_of("gpt-moe"), NPROC) if c.name.startswith(("tp/gather", "ep_x_etp/gather"))
    ]
    copied = [c for c in default_cases(graph_of("mixtral-2-kv-heads"), NPROC) if c.name == "tp/megatron"]
    jobs = [
        job("mixtral", mixtral),
        job("gpt-moe", gathers),
        job("mixtral-2-kv-heads", copied),
        job("mixtral", [c for c in mixtral if c.name in ("tp/megatron", "attention_dp_ep/megatron")], "float32"),
    ]
    assert points(run(jobs, simulated=False)) >= POINTS
