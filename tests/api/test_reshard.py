"""Periods of two layouts in turn: their seconds add up, and the moves are spread over the requests."""

from typing import Any

import numpy as np
import pytest

from autoshard.api.reshard import reshard
from autoshard.errors import InvalidInputError
from autoshard.hardware import parse_cluster
from autoshard.ir import OpGraph
from autoshard.simulator import Simulator
from autoshard.workload import Workload
from tests.graphs import GraphMaker

ISL, OSL = 2048, 256
CLUSTER = parse_cluster("H100x2")


@pytest.fixture(scope="module")
def graph() -> OpGraph:
    maker = GraphMaker(hidden=4096, heads=32, kv_heads=8, head_dim=128, intermediate=14336, vocab=32000)
    return maker.graph("m" * 4)


@pytest.fixture(scope="module")
def found(graph: OpGraph) -> dict[str, Any]:
    return reshard(graph, CLUSTER, Workload(phase="serve", isl=ISL, osl=OSL))


def phase_s(graph: OpGraph, layout: dict[str, Any], workload: Workload) -> tuple[float, float]:
    """(step, tokens/s) of a layout, by a simulator of its own."""
    sim = Simulator(graph, CLUSTER, workload, fixed=layout["degrees"], pinned=layout["choices"])
    dims = np.array([[v.choices.index(layout["choices"][v.key]) for v in sim.variables]])
    e = sim.evaluate(np.array([0]), dims)
    return float(e.step_s[0]), float(e.tokens_per_s[0])


@pytest.mark.parametrize("which", ["pair", "single"])
def test_seconds_of_a_period_are_those_of_its_layouts(graph: OpGraph, found: dict[str, Any], which: str) -> None:
    one = found[which]
    decode = Workload(context=ISL + OSL)
    step_s, _ = phase_s(graph, one["decode"], decode)
    _, rate = phase_s(graph, one["prefill"], Workload(phase="prefill", isl=ISL, context=ISL))
    d = one["decode"]["degrees"]
    assert one["requests"] == d["batch"] * d["replicas"]
    assert one["seconds"]["prefill"] == pytest.approx(one["requests"] * ISL / rate)
    assert one["seconds"]["decode"] == pytest.approx((OSL - 1) * step_s)
    assert one["period_s"] == pytest.approx(sum(one["seconds"].values()))
    assert one["tokens_per_s_per_gpu"] == pytest.approx(one["requests"] * OSL / one["period_s"] / 2)


def test_one_layout_moves_nothing_and_keeps_its_bound(found: dict[str, Any]) -> None:
    single = found["single"]
    keys = ("pp", "dp", "tp", "ep", "etp", "replicas")
    assert [single["prefill"]["degrees"][k] == single["decode"]["degrees"][k] for k in keys] == [True] * 6
    assert single["prefill"]["choices"] == single["decode"]["choices"]
    assert all(m["received"] == 0 for m in single["moved_bytes"].values())
    assert 0 < single["tokens_per_s_per_gpu"] <= found["single_bound_tokens_per_s_per_gpu"]
    assert found["gain"] == pytest.approx(found["pair"]["tokens_per_s_per_gpu"] / single["tokens_per_s_per_gpu"] - 1.0)


@pytest.mark.wide
def test_fewer_requests_carry_the_moves_worse(graph: OpGraph, found: dict[str, Any]) -> None:
    few = reshard(graph, CLUSTER, Workload(phase="serve", isl=ISL, osl=OSL), requests=16)
    assert few["pair"]["requests"] <= 16 < found["pair"]["requests"]
    assert few["gain"] <= found["gain"]


def test_mistakes_are_named(graph: OpGraph) -> None:
    serve = {"phase": "serve", "isl": ISL, "osl": OSL}
    for workload, requests, why in (
        (Workload(), None, "phase 'serve', not 'decode'"),
        (Workload(**serve, tpot_ms=10.0), None, "tpot_ms=10.0 has no meaning here"),  # type: ignore[arg-type]
        (Workload(**serve), 0, "requests=0 must be at least 1"),  # type: ignore[arg-type]
    ):
        with pytest.raises(InvalidInputError, match=why):
            reshard(graph, CLUSTER, workload, requests=requests)
