"""The collectives a plan lists are exactly what the simulator charges for, whatever the strategy."""

import numpy as np
import pytest

from autoshard.cost import collective_s, dispatch_s
from autoshard.hardware import Cluster, parse_cluster
from autoshard.sharding import Collective, collectives, handovers, mesh_of, stage_placements, stages_of
from autoshard.sharding.strategy import RESIDUAL_LAYOUTS
from autoshard.simulator import Simulator, terms
from autoshard.simulator.exchange import ENGINE_DISPATCH
from autoshard.simulator.tables import ENGINE_ALL_REDUCE
from autoshard.simulator.variables import ILLEGAL_S
from autoshard.workload import Workload
from tests.graphs import GraphMaker

TOP_K = 2


def library_s(cluster: Cluster, c: Collective, in_node: int) -> float:
    engine = ENGINE_ALL_REDUCE
    return float(collective_s(c.kind, c.num_bytes, c.group_size, in_node, cluster.intra, cluster.inter, engine=engine))


def engine_s(cluster: Cluster, c: Collective, in_node: int, tokens: int, direction: str) -> float:
    """The faster of an engine's kernels for rows of ``num_bytes / (tokens k)`` bytes."""
    nodes, row_bytes = -(-c.group_size // in_node), c.num_bytes / (tokens * TOP_K)
    laws = [cluster.device.dispatch[f"{name}/{direction}"] for name in ENGINE_DISPATCH]
    links = cluster.intra, cluster.inter
    return min(float(dispatch_s(law, tokens, row_bytes, TOP_K, c.group_size, nodes, *links)) for law in laws)


def drawn(sim: Simulator, point: int, rng: np.random.Generator) -> tuple[int, ...]:
    """Legal options, norms as the residual is."""
    residual, *others = sim.variables
    first = int(rng.choice(np.flatnonzero(residual.legal[point])))
    layout = RESIDUAL_LAYOUTS[residual.choices[first]]
    goes = [v.legal[point] & np.array([n in (None, layout) for n in v.needs_residual]) for v in others]
    return (first, *(int(rng.choice(np.flatnonzero(g))) for g in goes))


# "dmm" has both kinds of layer; the others run with -m wide.
@pytest.mark.parametrize(
    "kinds", [pytest.param("mm", marks=pytest.mark.wide), pytest.param("dd", marks=pytest.mark.wide), "dmm"]
)
@pytest.mark.parametrize("phase", ["decode", "prefill"])
def test_charged_is_listed(kinds: str, phase: str) -> None:
    cluster = parse_cluster("H100x16")
    workload = Workload(phase=phase, context=256)
    sim = Simulator(GraphMaker().graph(kinds), cluster, workload, fixed={"pp": 1})
    rng = np.random.default_rng(7)
    seen = exchanged = 0
    for _ in range(150):
        point = int(rng.integers(len(sim.points)))
        dims = drawn(sim, point, rng)
        e = sim.evaluate(np.array([point]), np.array([dims]))
        if e.step_s[0] >= ILLEGAL_S:
            continue
        strategy = sim.strategy(point, dims)
        d = strategy.degrees
        tokens = d.sequences * workload.tokens_per_sequence
        listed = collectives(sim.graph, strategy, tokens=tokens, logit_tokens=d.sequences, activation_bytes=2.0)
        in_node = {c.axis: int(sim.points.in_node[c.axis][point]) for c in listed}
        expected = sum(c.count * library_s(cluster, c, in_node[c.axis]) for c in listed if c.kind != "all_to_all")
        # Counts, rows to the experts and results, in this order. An ep rank has the tokens of dp / ep dp ranks, or an
        # ep / dp-th of one's, rounded up.
        own = tokens * d.dp // d.ep if d.dp >= d.ep else -(-tokens // (d.ep // d.dp))
        trips = [c for c in listed if c.kind == "all_to_all"]
        for counts, out, back in zip(trips[::3], trips[1::3], trips[2::3], strict=True):
            there = library_s(cluster, counts, in_node["ep"]) + library_s(cluster, out, in_node["ep"])
            home = library_s(cluster, back, in_node["ep"])
            expected += out.count * min(there, engine_s(cluster, out, in_node["ep"], own, "dispatch"))
            expected += back.count * min(home, engine_s(cluster, back, in_node["ep"], own, "combine"))
        charged = sum(t.seconds for t in terms(sim, point, dims) if t.what == "collective")
        assert charged == pytest.approx(expected, rel=1e-9), strategy
        seen += len(listed)
        exchanged += len(trips)
    assert seen > 300
    assert exchanged > 60 or "m" not in kinds


def test_charged_hand_overs_are_listed() -> None:
    """A step of pp stages waits for pp hand-overs (the last one brings the token back to the first stage)."""
    cluster = parse_cluster("H100x8")
    sim = Simulator(GraphMaker().graph("m" * 4), cluster, Workload(context=256))
    rng = np.random.default_rng(3)
    layouts = set()
    for point in rng.choice(np.flatnonzero(sim.points.pp > 1), 60):
        dims = drawn(sim, int(point), rng)
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
        dims = drawn(sim, int(point), rng)
        strategy = sim.strategy(int(point), dims)
        mesh = mesh_of(graph, strategy.degrees)
        stages = [stage_placements(graph, strategy, stage) for stage in stages_of(graph, strategy)]
        held = [sum(p.local_bytes(mesh) for p in stage) for stage in stages]
        predicted = float(sim.evaluate(np.array([point]), np.array([dims])).weights_bytes[0])
        assert min(abs(predicted - h) for h in held) < 1e-6 * predicted, strategy
