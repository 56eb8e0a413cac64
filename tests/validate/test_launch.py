"""Ranks that hang or die: an error in bounded time, and nothing left running."""

import os
import time
from pathlib import Path

import pytest

from autoshard.errors import InvalidInputError
from autoshard.sharding import Degrees
from autoshard.sharding.patterns import pattern_strategy
from autoshard.validate import Case, LaunchError, LaunchTimeout, ModelJob, validate
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


@pytest.mark.parametrize(
    "fault,kind,message,limit_s",
    [
        ("hang", LaunchTimeout, "2 ranks: not done after 20 s$", 20),
        ("die", LaunchError, "2 ranks: exit code", 120),
    ],
)
def test_no_result_is_an_error_in_time(
    fault: str, kind: type[LaunchError], message: str, limit_s: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOSHARD_TEST_MARK", str(os.getpid()))
    start = time.monotonic()
    with pytest.raises(kind, match=message):
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


def test_simulated_ranks_that_hang_are_an_error_in_time() -> None:
    """A rank that sleeps (2.5 s, a thread cannot be stopped) while the others wait for it: the job's second is over."""
    work = job(Degrees(tp=2, etp=2)).model_copy(update={"source": SOURCES["llama"].to_dict()})
    slow = work.cases[0].model_copy(update={"hook": "tests.validate.faults:doze"})
    with pytest.raises(LaunchTimeout, match="2 simulated ranks: not done after 1 s"):
        validate(
            [work.model_copy(update={"cases": (slow,)})], nproc=2, dtypes=("float32",), timeout_s=1.0, simulated=True
        )
