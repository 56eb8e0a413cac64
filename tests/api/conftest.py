"""One plan for all tests of the API: real Mixtral on 64 H100s."""

import json
from collections.abc import Iterator

import pytest

from autoshard import H100x64, Plan, Workload, autoshard
from autoshard.api import models
from autoshard.ir import OpGraph
from autoshard.tracing import ModelSource


@pytest.fixture(scope="session")
def plan() -> Plan:
    """Decode at 16k context with a limit that makes tp > 1 worth it; a small budget."""
    return autoshard("mixtral-8x7b", H100x64, Workload(context=16384, tpot_ms=20), budget=300)


@pytest.fixture(scope="session")
def graph(plan: Plan) -> OpGraph:
    """Mixtral's operator graph."""
    return plan.graph


@pytest.fixture(scope="session", autouse=True)
def _trace_each_source_once() -> Iterator[None]:
    """Tracing is pure and takes a second: these tests, which are not about it, share its results."""
    traced: dict[str, OpGraph] = {}
    original = models.trace_source

    def cached(source: ModelSource) -> OpGraph:
        key = json.dumps(source.to_dict(), sort_keys=True)
        if key not in traced:
            traced[key] = original(source)
        return traced[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(models, "trace_source", cached)
        yield
