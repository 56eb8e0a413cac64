"""Tables over classes of choices, and what large clusters need fast: facts asked for once, distinct rows."""

import numpy as np
import pytest

from autoshard.hardware import parse_cluster
from autoshard.ir import OpGraph, once_per_graph
from autoshard.sharding.legality import attention_heads
from autoshard.simulator import Simulator
from autoshard.simulator.points import distinct, ranks_in_node
from autoshard.simulator.variables import Factor
from autoshard.workload import Workload
from tests.graphs import GraphMaker


def test_options_that_mean_the_same_share_a_column() -> None:
    table = np.array([[[1.0, 2.0], [3.0, 4.0]]])  # one point, two variables of two columns
    factor = Factor(variables=(0, 2), table=table, label="x", what="collective", classes=((0, 1, 0), (0, 0, 1)))
    dims = np.array([[0, 9, 0], [2, 9, 1], [1, 9, 2], [2, 9, 2]])
    # Columns (0, 0), (0, 0), (1, 1), (0, 1).
    assert factor.at(np.zeros(4, dtype=np.int64), dims).tolist() == [1.0, 1.0, 4.0, 2.0]


def test_readers_of_one_tensor_have_two_classes() -> None:
    """q, k and v read the norm's output whole (choices 0 and none) or split (1): two columns each, not three."""
    fixed = {"pp": 1, "dp": 1, "tp": 4, "ep": 1, "batch": 8}
    sim = Simulator(GraphMaker().graph("m"), parse_cluster("H100x4"), Workload(context=512), fixed=fixed)
    part = sim.components["layers"]
    factor = next(f for f in part.factors if f.label == "attn_norm" and len(f.variables) > 1)
    keys = [sim.variables[v].key for v in factor.variables]
    assert {"layers/q", "layers/k", "layers/v"} <= set(keys)
    for key in ("layers/q", "layers/k", "layers/v"):
        v = factor.variables[keys.index(key)]
        none, zero, one = (sim.variables[v].choices.index(c) for c in (None, 0, 1))
        classes = factor.classes[keys.index(key)]
        assert classes[none] == classes[zero] != classes[one]


def test_facts_of_a_graph_are_asked_for_once_and_never_mixed_up() -> None:
    asked: list[OpGraph] = []

    @once_per_graph
    def heads(graph: OpGraph) -> int:
        asked.append(graph)
        return attention_heads(graph)[0][0]

    graphs = [GraphMaker(heads=h, kv_heads=h).graph("d") for h in (2, 4, 8, 16, 32)]
    for _ in range(2):
        assert [heads(g) for g in graphs[:4]] == [2, 4, 8, 16]
    assert len(asked) == 4
    assert [heads(g) for g in (*graphs, *graphs)] == [2, 4, 8, 16, 32] * 2  # five do not fit, and are asked again


def test_distinct_rows() -> None:
    first, of = distinct(np.array([2, 1, 2, 1]), np.array([0, 5, 0, 6]))
    # (1, 5) at 1, (1, 6) at 3, (2, 0) at 0 and 2.
    assert first.tolist() == [1, 3, 0]
    assert of.tolist() == [2, 0, 2, 1]


@pytest.mark.parametrize(
    "size, stride, expected",
    # Six devices in nodes of 4: pairs 0-1, 2-3, 4-5 lie in a node; of 0-2-4 and 1-3-5 two do; of 1-4 none.
    [(2, 1, 2), (3, 2, 2), (2, 3, 1)],
)
def test_ranks_in_a_node(size: int, stride: int, expected: int) -> None:
    assert ranks_in_node(size, stride, 6, 4) == expected
