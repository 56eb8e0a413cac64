"""Exchanged and split tokens on four real ranks, prompt and cached decode, in both dtypes, for more families."""

import pytest

from autoshard import catalogue
from autoshard.tracing import trace_source
from autoshard.validate import ModelJob, default_cases, validate

NPROC = 4


@pytest.mark.wide
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["deepseek-v3", "gpt-oss-20b", "qwen3-30b-a3b", "mixtral-8x7b"])
@pytest.mark.parametrize(("sequences", "lengths"), [(4, (6, 1, 1)), (2, (3, 1))])
def test_exchanged_and_split_tokens(name: str, sequences: int, lengths: tuple[int, ...]) -> None:
    source = catalogue.find(name).reduced(tp=NPROC, ep=NPROC, etp=NPROC, nproc=NPROC, plan_tp=None)
    graph = trace_source(source)
    cases = tuple(
        c
        for c in default_cases(graph, NPROC)
        if ("all_to_all" in c.name or "split_tokens" in c.name) and sequences % c.strategy.degrees.dp == 0
    )
    assert len(cases) > 10
    job = ModelJob(source=source.to_dict(), graph=graph, cases=cases, sequences=sequences, lengths=lengths)
    reports = validate([job], nproc=NPROC, timeout_s=600)
    failed = [f"{r.name} {r.dtype} {r.degrees}: {r.difference}" for r in reports if not r.passed]
    assert not failed, "\n".join(failed)
    assert len(reports) == 2 * len(cases)
    assert sum(t.kind == "all_to_all" for r in reports for t in r.expected) > 0
