"""Every pattern on four real ranks equals the unsharded model and sends exactly what was derived beforehand."""

import pytest

from autoshard.validate import Case, ModelJob, ValidationReport, default_cases, validate
from tests.validate.sources import SOURCES, graph_of

NPROC = 4


def run(names: list[str], dtypes: tuple[str, ...], only: str = "") -> tuple[ValidationReport, ...]:
    jobs = []
    for name in names:
        cases: list[Case] = [c for c in default_cases(graph_of(name), NPROC) if c.name.startswith(only)]
        assert cases
        jobs.append(ModelJob(source=SOURCES[name].to_dict(), graph=graph_of(name), cases=tuple(cases)))
    return validate(jobs, nproc=NPROC, dtypes=dtypes, timeout_s=240)


def assert_all_passed(reports: tuple[ValidationReport, ...]) -> None:
    failed = [f"{r.name} {r.dtype}: {r.difference}" for r in reports if not r.passed]
    assert not failed, "\n".join(failed)
    assert all(r.collectives_match and r.parameter_bytes_match for r in reports)
    assert all(r.logits_max_rel_err <= r.tolerance for r in reports)


@pytest.mark.parametrize("name", ["mixtral", "qwen3-moe", "gpt-moe"])
def test_every_pattern_in_both_precisions(name: str) -> None:
    reports = run([name], ("float32", "float64"))
    assert_all_passed(reports)
    names = {r.name.partition("/")[0] for r in reports}
    assert names == {"tp", "ep", "ep_x_etp", "attention_dp_ep", "attention_dp_ep_x_etp"}
    assert all(r.expected for r in reports)


def test_every_pattern_of_other_families() -> None:
    assert_all_passed(run(["olmoe", "llama"], ("float64",)))


def test_biases_ties_and_copied_kv_heads() -> None:
    names = ["llama-biases", "llama-tied", "mixtral-2-kv-heads", "olmoe-2-kv-heads"]
    assert_all_passed(run(names, ("float64",), only="tp/"))
