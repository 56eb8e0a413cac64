"""Bytes that go from rank to rank between two layouts, worked out by hand."""

import numpy as np
import pytest

from autoshard.cost import collective_s
from autoshard.hardware import parse_cluster
from autoshard.sharding import Degrees, Strategy
from autoshard.sharding.patterns import pattern_strategy
from autoshard.simulator import Simulator
from autoshard.simulator.reshard import move_caches, move_weights
from autoshard.workload import Workload
from tests.graphs import GraphMaker

H100x2 = parse_cluster("H100x2")
WORKLOAD = Workload()
DENSE = GraphMaker(hidden=64, heads=8, kv_heads=4, head_dim=16, intermediate=96, vocab=256).graph("dd")
TABLE, NORM = 256 * 64, 64
# q, k, v, o; gate, up, down; two norms
MATRICES = 64 * 128 + 2 * 64 * 64 + 128 * 64 + 3 * 64 * 96
LAYER = MATRICES + 2 * NORM


def megatron(graph=DENSE, **degrees: int) -> Strategy:  # type: ignore[no-untyped-def]
    return pattern_strategy(graph, Degrees(**degrees), "megatron")


def test_what_stays_does_not_move() -> None:
    same = megatron(tp=2, etp=2)
    assert move_weights(DENSE, H100x2, WORKLOAD, same, same).seconds == 0.0
    assert move_caches(DENSE, H100x2, WORKLOAD, same, same, requests=10, tokens=100).seconds == 0.0


def test_from_shards_to_wholes_and_back() -> None:
    """Under tp=2 a rank has half of every matrix and both tables, and gets the other half; norms are whole already.

    Ten requests of 100 tokens: 100 * 4 kv heads * 32 * 2 bytes a layer and request, two layers. A rank has two kv
    heads of all ten, will have all four of five, and keeps two of five.
    """
    split, whole = megatron(tp=2, etp=2), megatron(dp=2, tp=1, ep=2, etp=1, batch=2)
    there = move_weights(DENSE, H100x2, WORKLOAD, split, whole)
    expected = (2 * TABLE + 2 * MATRICES) / 2 * 2  # half of the elements, two bytes each
    assert there.received_bytes == there.sent_bytes == expected
    seconds = collective_s("send_recv", expected, 2, 2, H100x2.intra, H100x2.inter)
    assert there.seconds == pytest.approx(float(seconds), rel=1e-12)
    assert move_weights(DENSE, H100x2, WORKLOAD, whole, split).received_bytes == 0.0
    caches = move_caches(DENSE, H100x2, WORKLOAD, split, whole, requests=10, tokens=100)
    request = 100 * 4 * 32 * 2 * 2
    assert caches.received_bytes == caches.sent_bytes == 5 * request - 5 * request / 2


def test_stages_and_replicas() -> None:
    """From two whole replicas nothing has to come; from two stages the rank with less gets the rest of the model.

    Rank 0 has the table and a layer and gets a layer, the final norm and the head; rank 1 a layer and the table. Of ten
    requests a rank has its layer of all, and will have both layers of five.
    """
    stages = megatron(pp=2, batch=2)
    replicas = megatron(replicas=2)
    assert move_weights(DENSE, H100x2, WORKLOAD, replicas, stages).received_bytes == 0.0
    back = move_weights(DENSE, H100x2, WORKLOAD, stages, replicas)
    assert back.received_bytes == 2 * (LAYER + NORM + TABLE)
    caches = move_caches(DENSE, H100x2, WORKLOAD, stages, replicas, requests=10, tokens=100)
    assert caches.received_bytes == 5 * 100 * 4 * 32 * 2


def test_experts_from_whole_to_parts() -> None:
    """ep=2 has four of eight experts whole, etp=2 half of each of all eight: a quarter stays, a quarter comes.

    An expert has 3 * 64 * 96 elements. The attention part is tp=2 both times.
    """
    graph = GraphMaker().graph("m")
    old, new = megatron(graph, tp=2, ep=2, etp=1), megatron(graph, tp=2, ep=1, etp=2)
    for a, b in ((old, new), (new, old)):
        assert move_weights(graph, H100x2, WORKLOAD, a, b).received_bytes == 8 * 3 * 64 * 96 / 4 * 2


def test_an_idle_rank_gets_all_that_the_simulator_counts() -> None:
    """Rank 1 held nothing: what it receives are the weights of a rank of tp=2, counted by the other code."""
    graph = GraphMaker().graph("mm")
    new = megatron(graph, tp=2, ep=2, etp=1)
    moved = move_weights(graph, H100x2, WORKLOAD, megatron(graph), new)
    fixed = {"pp": 1, "dp": 1, "tp": 2, "ep": 2, "batch": 1}
    sim = Simulator(graph, H100x2, WORKLOAD, fixed=fixed)
    dims = np.array([[v.choices.index(new.choice(v.key)) for v in sim.variables]])
    assert moved.received_bytes == float(sim.evaluate(np.array([0]), dims).weights_bytes[0])
