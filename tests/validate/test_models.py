"""Every pattern, and random strategies, on four real ranks: the unsharded model's logits, the derived traffic.

All in one launch, because starting ranks is slow. ``AUTOSHARD_RANDOM_STRATEGIES=40`` draws more of them.
"""

import os

import pytest

from autoshard.validate import Case, ModelJob, ValidationReport, default_cases, validate
from tests.validate.sources import SOURCES, graph_of
from tests.validate.strategies import random_strategies

NPROC = 4
COUNT = int(os.environ.get("AUTOSHARD_RANDOM_STRATEGIES", "8"))
SEED = int(os.environ.get("AUTOSHARD_RANDOM_SEED", "20"))
MAIN = ("mixtral", "qwen3-moe", "gpt-moe")
OTHER = ("olmoe", "llama", "llama-biases", "llama-tied", "mixtral-2-kv-heads", "olmoe-2-kv-heads")
RANDOM = (*MAIN, "olmoe-2-kv-heads", "llama-biases", "llama-tied")


def job(model: str, cases: list[Case], dtype: str) -> ModelJob:
    named = tuple(c.model_copy(update={"name": f"{model}: {c.name}"}) for c in cases)
    return ModelJob(source=SOURCES[model].to_dict(), graph=graph_of(model), cases=named, dtypes=(dtype,))


def is_variant(name: str) -> bool:
    return "split_tokens" in name or "all_to_all" in name


@pytest.fixture(scope="module")
def reports() -> tuple[ValidationReport, ...]:
    jobs = []
    for model in MAIN:
        patterns = list(default_cases(graph_of(model), NPROC))
        jobs.append(job(model, patterns, "float64"))
        # A sharded residual and exchanged tokens are variants of these: in float64 and in the random strategies only.
        plain = [c for c in patterns if not is_variant(c.name) and "sharded_residual" not in c.name]
        jobs.append(job(model, plain, "float32"))
    for model in OTHER:
        jobs.append(
            job(model, [c for c in default_cases(graph_of(model), NPROC) if c.name.startswith("tp/")], "float64")
        )
    for model in RANDOM:
        drawn = random_strategies(graph_of(model), NPROC, COUNT, SEED)
        cases = [Case(name=f"random, seed {SEED}, no {i}", strategy=s) for i, s in enumerate(drawn)]
        jobs.append(job(model, cases, "float64"))
    # One sequence: 5 tokens, then 1, on 4 ranks. Shares are uneven, and most ranks have none.
    few = [c for c in default_cases(graph_of("mixtral"), NPROC) if c.strategy.degrees.dp == 1 and is_variant(c.name)]
    few = [c.model_copy(update={"name": f"few tokens, {c.name}"}) for c in few if "megatron" in c.name]
    jobs.append(job("mixtral", few, "float64").model_copy(update={"sequences": 1, "lengths": (5, 1)}))
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
    mine = [r for r in reports if r.name.startswith(f"{model}: ") and r.dtype == dtype]
    mine = [r for r in mine if "random" not in r.name and "few tokens" not in r.name]
    assert_all_passed(mine)
    points = {r.name.removeprefix(f"{model}: ").partition("/")[0] for r in mine}
    assert all(r.expected for r in mine)
    assert points == {"tp", "ep", "ep_x_etp", "attention_dp_ep", "attention_dp_ep_x_etp"}


@pytest.mark.timeout(900)
def test_fewer_tokens_than_ranks(reports: tuple[ValidationReport, ...]) -> None:
    mine = [r for r in reports if r.name.startswith("mixtral: few tokens")]
    assert {r.name.rpartition("/")[2] for r in mine} == {"split_tokens", "all_to_all"}
    assert_all_passed(mine)


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
