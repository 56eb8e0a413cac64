"""A bound on choices of each layer for itself: never below the exact optimum of a model whose layers are all of their
own kind."""

from dataclasses import replace

import pytest

from autoshard.ir import OpGraph
from autoshard.search.exact import ExactSearch
from autoshard.search.untied import untied_bound
from autoshard.simulator import Simulator
from autoshard.workload import Workload
from tests.graphs import GraphMaker
from tests.search.test_exact import _byte_range, tiny_cluster


def every_layer_apart(maker: GraphMaker, graph: OpGraph) -> OpGraph:
    """The same model with a block for each layer, so that the exact search chooses for each."""
    (block,) = graph.blocks
    kind = "moe" if any(op.name == "router" for op in block.ops) else "dense"
    blocks = tuple(maker.block(kind, f"layer{i}", [i]) for i in range(block.repeat))
    return replace(graph, blocks=blocks, layers=tuple(range(len(blocks))))


def both(kinds: str, slack: float, fixed: dict[str, int]) -> tuple[Simulator, Simulator]:
    """A model tied and untied, in memory between the least and the most that its choices hold."""
    maker = GraphMaker(hidden=2048, intermediate=2080, experts=4)
    graph, workload = maker.graph(kinds), Workload(context=512)
    least, most = _byte_range(Simulator(graph, tiny_cluster(4, 1e12, 2e9, 2), workload, fixed=fixed))
    cluster = tiny_cluster(4, least + slack * (most - least) + 1.0, 2e9, 2)
    tied, untied = (Simulator(g, cluster, workload, fixed=fixed) for g in (graph, every_layer_apart(maker, graph)))
    return tied, untied


@pytest.mark.parametrize("slack", [0.05, 0.2, 0.4, 1.0])
@pytest.mark.parametrize(
    ("kinds", "fixed"),
    [("mm", {"tp": 4, "batch": 8}), ("mmm", {"pp": 1, "tp": 2, "batch": 8}), ("dddd", {"pp": 2, "tp": 2, "batch": 8})],
)
def test_the_bound_is_never_below_the_untied_optimum(kinds: str, fixed: dict[str, int], slack: float) -> None:
    tied, untied = both(kinds, slack, fixed)
    optimum, own = ExactSearch(tied).run().tokens_per_s, ExactSearch(untied).run().tokens_per_s
    bound = untied_bound(tied, optimum)
    assert optimum * (1 - 1e-9) <= own <= bound * (1 + 1e-9)
    if slack == 1.0:  # all fits: every layer takes what is fastest, the same for equal layers
        assert bound == pytest.approx(optimum, rel=1e-9) and own == pytest.approx(optimum, rel=1e-9)


def test_where_memory_binds_layers_of_their_own_can_gain() -> None:
    tied, untied = both("mmm", 0.2, {"pp": 1, "tp": 2, "batch": 8})
    optimum, own = ExactSearch(tied).run().tokens_per_s, ExactSearch(untied).run().tokens_per_s
    assert own > optimum * 1.001, "or this model would show nothing"
    assert untied_bound(tied, optimum) >= own
