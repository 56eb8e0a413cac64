"""The collectives a plan lists are exactly what the simulator charges for, whatever the strategy."""

import numpy as np
import pytest

from autoshard.cost import collective_s
from autoshard.hardware import parse_cluster
from autoshard.sharding import collectives, handovers, mesh_of, stage_placements, stages_of
from autoshard.simulator import Simulator, terms
from autoshard.simulator.tables import ENGINE_ALL_REDUCE
from autoshard.simulator.variables import ILLEGAL_S
from autoshard.workload import Workload
from tests.graphs import GraphMaker


@pytest.mark.parametrize("kinds", ["mm", "dd", "dmm"])
@pytest.mark.parametrize("phase", ["decode", "prefill"])
def test_charged_is_listed(kinds: str, phase: str) -> None:
    cluster = parse_cluster("H100x16")
    workload = Workload(phase=phase, context=256)
    sim = Simulator(GraphMaker().graph(kinds), cluster, workload, fixed={"pp": 1})
    rng = np.random.default_rng(7)
    seen = 0
    for _ in range(150):
        point = int(rng.integers(len(sim.points)))
        dims = tuple(int(rng.choice(np.flatnonzero(v.legal[point]))) for v in sim.variables)
        e = sim.evaluate(np.array([point]), np.array([dims]))
        if e.step_s[0] >= ILLEGAL_S:
            continue
        strategy = sim.strategy(point, dims)
        tokens = strategy.degrees.sequences * workload.tokens_per_sequence
        listed = collectives(
            sim.graph, strategy, tokens=tokens, logit_tokens=strategy.degrees.sequences, activation_bytes=2.0
        )
        expected = sum(
            c.count
            * float(
                collective_s(
                    c.kind,
                    c.num_bytes,
                    c.group_size,
                    int(sim.points.in_node[c.axis][point]),
                    cluster.intra,
                    cluster.inter,
                    engine=ENGINE_ALL_REDUCE,
                )
            )
            for c in listed
        )
        charged = sum(t.seconds for t in terms(sim, point, dims) if t.what == "collective")
        assert charged == pytest.approx(expected, rel=1e-9), strategy
        seen += len(listed)
    assert seen > 300


def test_charged_hand_overs_are_listed() -> None:
    """A step of pp stages waits for pp hand-overs (the last one brings the token back to the first stage)."""
    cluster = parse_cluster("H100x8")
    sim = Simulator(GraphMaker().graph("m" * 4), cluster, Workload(context=256))
    rng = np.random.default_rng(3)
    layouts = set()
    for point in rng.choice(np.flatnonzero(sim.points.pp > 1), 60):
        dims = tuple(int(rng.choice(np.flatnonzero(v.legal[point]))) for v in sim.variables)
        strategy = sim.strategy(int(point), dims)
        sent = handovers(sim.graph, strategy, tokens=strategy.degrees.sequences, activation_bytes=2.0)
        assert len(sent) == strategy.degrees.pp - 1 and len({c.num_bytes for c in sent}) == 1
        one = float(collective_s("send_recv", sent[0].num_bytes, 2, 2, cluster.intra, cluster.inter))
        charged = sum(t.seconds for t in terms(sim, int(point), dims) if t.what == "send_recv")
        assert charged == pytest.approx(strategy.degrees.pp * one, rel=1e-9)
        layouts.add(strategy.residual)
    assert len(layouts) == 2


@pytest.mark.parametrize("tied", [False, True])
def test_weights_are_those_of_a_stage(tied: bool) -> None:
    """The weights of the fullest stage, against what its ranks will hold."""
    graph = GraphMaker(tied=tied).graph("dmmm")
    sim = Simulator(graph, parse_cluster("H100x8"), Workload(context=256))
    rng = np.random.default_rng(5)
    for point in rng.choice(np.flatnonzero(sim.points.pp > 1), 60):
        dims = tuple(int(rng.choice(np.flatnonzero(v.legal[point]))) for v in sim.variables)
        strategy = sim.strategy(int(point), dims)
        mesh = mesh_of(graph, strategy.degrees)
        stages = [stage_placements(graph, strategy, stage) for stage in stages_of(graph, strategy)]
        held = [sum(p.local_bytes(mesh) for p in stage) for stage in stages]
        predicted = float(sim.evaluate(np.array([point]), np.array([dims])).weights_bytes[0])
        assert min(abs(predicted - h) for h in held) < 1e-6 * predicted, strategy
