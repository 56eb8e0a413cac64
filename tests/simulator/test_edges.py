"""The algorithm of every collective: what is listed is what was charged, and the library alone is never faster."""

import numpy as np
import pytest

from autoshard.cost import collective_s
from autoshard.errors import InvalidInputError
from autoshard.hardware import parse_cluster
from autoshard.search.exact import ExactSearch
from autoshard.simulator import Simulator, terms
from autoshard.simulator.edges import edges
from autoshard.workload import Workload
from tests.graphs import mixtral_like

GRAPH = mixtral_like()


def fastest_at(cluster: str, **fixed: int) -> tuple[Simulator, tuple[int, ...]]:
    sim = Simulator(GRAPH, parse_cluster(cluster), Workload(), fixed={"pp": 1, **fixed})
    found = ExactSearch(sim).best_at(0)
    assert found is not None
    return sim, found[1]


@pytest.mark.parametrize(
    "cluster, fixed",
    [
        ("H100x8", {"dp": 1, "tp": 8, "ep": 1, "batch": 32}),
        ("H100x8", {"dp": 8, "tp": 1, "ep": 8, "batch": 64}),
        ("H100x16", {"dp": 2, "tp": 8, "ep": 8, "batch": 64}),
        ("H100x16+library", {"dp": 2, "tp": 8, "ep": 8, "batch": 64}),
    ],
)
def test_edges_are_what_the_step_is_charged_for(cluster: str, fixed: dict[str, int]) -> None:
    sim, dims = fastest_at(cluster, **fixed)
    charged = sum(t.seconds for t in terms(sim, 0, dims) if t.what == "collective")
    listed = edges(sim, 0, dims)
    assert sum(e.count * e.seconds[e.algorithm] for e in listed) == pytest.approx(charged, rel=1e-12)
    assert listed and all(e.seconds[e.algorithm] == min(e.seconds.values()) for e in listed)


def test_small_all_reduces_go_by_the_engines_kernel_and_large_ones_across_nodes_by_levels() -> None:
    sim, dims = fastest_at("H100x8", dp=1, tp=8, ep=1, batch=1)
    (first, *_) = [e for e in edges(sim, 0, dims) if e.kind == "all_reduce"]
    # One token of 4,096 bfloat16: 8 KiB over 8 ranks of a node.
    assert (
        first.num_bytes == 8192
        and first.algorithm == "vllm_graph"
        and first.seconds.keys() == {"library", "vllm_graph"}
    )
    link = sim.cluster.intra
    assert first.seconds["library"] == float(collective_s("all_reduce", 8192, 8, 8, link, sim.cluster.inter))
    both = collective_s("all_reduce", 8192, 8, 8, link, sim.cluster.inter, engine="vllm_graph")
    assert first.seconds["vllm_graph"] == float(both)
    sim, dims = fastest_at("H100x16", dp=1, tp=16, ep=1, batch=16)
    assert {e.algorithm for e in edges(sim, 0, dims) if e.kind == "all_reduce"} == {"hierarchical"}


def test_the_library_alone_is_a_cluster_of_its_own() -> None:
    named = parse_cluster("h100x8+library")
    assert named.name == "H100x8+library" and not named.intra.engine_laws and not named.device.dispatch
    fixed = {"pp": 1, "dp": 1, "tp": 8, "ep": 8}
    both, alone = (Simulator(GRAPH, c, Workload(), fixed=fixed) for c in (parse_cluster("H100x8"), named))
    rng = np.random.default_rng(0)
    point = rng.integers(len(both.points), size=100)
    dims = np.stack([rng.integers(len(v.choices), size=100) for v in both.variables], 1)
    faster, slower = both.evaluate(point, dims).step_s, alone.evaluate(point, dims).step_s
    assert (faster <= slower).all() and (faster < slower).any()
    with pytest.raises(InvalidInputError, match="cannot read cluster"):
        parse_cluster("H100x8+nccl")
