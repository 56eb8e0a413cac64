"""Ranks that hang or die: an error in bounded time, and nothing left running."""

import os
import time
from pathlib import Path

import pytest

from autoshard.errors import InvalidInputError
from autoshard.sharding import Degrees
from autoshard.sharding.patterns import pattern_strategy
from autoshard.validate import Case, LaunchError, ModelJob, validate
from tests.validate.sources import SOURCES, graph_of


def job(degrees: Degrees, fault: str | None = None) -> ModelJob:
    graph = graph_of("llama")
    hook = None if fault is None else f"faults:{fault}"
    case = Case(name=str(fault), strategy=pattern_strategy(graph, degrees, "megatron"), hook=hook)
    return ModelJob(source=SOURCES["llama"].to_dict(), graph=graph, cases=(case,))


def ranks_left() -> list[str]:
    """Command lines of elastic processes started by this one."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_text().split("\0") if entry.name.isdigit() else []
            environment = (entry / "environ").read_text() if "autoshard.validate.elastic" in words else ""
        except OSError:
            continue
        if f"AUTOSHARD_TEST_MARK={os.getpid()}" in environment:
            found.append(" ".join(words))
    return found


@pytest.mark.parametrize("fault,message,limit_s", [("hang", "2 ranks: ", 20), ("die", "2 ranks: exit code", 120)])
def test_no_result_is_an_error_in_time(fault: str, message: str, limit_s: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOSHARD_TEST_MARK", str(os.getpid()))
    start = time.monotonic()
    with pytest.raises(LaunchError, match=message):
        validate(
            [job(Degrees(tp=2, etp=2), fault)],
            nproc=2,
            dtypes=("float32",),
            timeout_s=limit_s,
            python_path=[Path(__file__).parent],
        )
    assert time.monotonic() - start < limit_s + 40
    assert not ranks_left()


def test_cases_that_do_not_fit_the_ranks_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="needs 2 ranks, not 4"):
        validate([job(Degrees(tp=2, etp=2))], nproc=4)
    odd = job(Degrees(dp=2, ep=2, batch=2)).model_copy(update={"sequences": 3})
    with pytest.raises(InvalidInputError, match="3 sequences over dp=2"):
        validate([odd], nproc=2)
