"""A plan of a small model, made once."""

from collections.abc import Callable
from functools import cache

import pytest

from autoshard.api.build_plan import build_plan, degrees_dict
from autoshard.api.plan import Plan
from autoshard.api.solve import make_simulator, solve
from autoshard.hardware import parse_cluster
from autoshard.ir import OpGraph
from autoshard.sharding import Strategy
from autoshard.workload import Workload

MakePlan = Callable[..., Plan]


@cache
def _cluster(name: str):  # type: ignore[no-untyped-def]
    return parse_cluster(name)


@pytest.fixture(scope="session")
def plan_of_strategy() -> MakePlan:
    """``plan_of_strategy(graph, strategy, cluster)``: the plan that is exactly that strategy, whatever its batch."""

    def make(graph: OpGraph, strategy: Strategy, cluster: str, workload: Workload | None = None) -> Plan:
        fixed = {k: v for k, v in degrees_dict(strategy.degrees).items() if k not in ("batch", "replicas")}
        simulator = make_simulator(
            graph, _cluster(cluster), workload or Workload(), fixed=fixed, pinned=dict(strategy.choices)
        )
        return Plan(build_plan(solve(simulator, algorithm="exact"), None))

    return make
