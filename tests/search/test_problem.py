"""The sharding problem: masks are exact, legality is free, calls are counted."""

from dataclasses import replace

import numpy as np
import pytest

from autoshard.hardware import parse_cluster
from autoshard.search.keys import PrefixSet
from autoshard.search.problem import ShardingProblem
from autoshard.sharding import strategy_reasons
from autoshard.sharding.strategy import RESIDUAL
from autoshard.simulator import Simulator
from autoshard.workload import Workload
from tests.graphs import GraphMaker, mixtral_like


@pytest.fixture(scope="module")
def tight() -> ShardingProblem:
    """Mixtral on 16 devices at a long context: memory binds at many points."""
    return ShardingProblem(Simulator(mixtral_like(), parse_cluster("H100x16"), Workload(context=16384)), budget=500)


def walk(problem: ShardingProblem, n: int, seed: int) -> np.ndarray:
    """Rows sampled by taking a random allowed option at every component."""
    rng = np.random.default_rng(seed)
    x = np.zeros((n, len(problem.num_options)), dtype=np.int64)
    for position in range(x.shape[1]):
        allowed = problem.mask(x, position)
        assert allowed.any(1).all(), f"nothing allowed for {problem.component_names[position]}"
        x[:, position] = (rng.random(allowed.shape) * allowed).argmax(1)
    return x


def test_filling_by_masks_gives_legal_strategies_that_fit(tight: ShardingProblem) -> None:
    x = walk(tight, 2000, 0)
    assert tight.legal(x).all()
    point = tight.points_of(x)
    e = tight.sim.evaluate(point, x[:, tight.num_degree_components :])
    assert (e.violation == 0).all(), "no limit is set, so legal and fitting is feasible"
    for row in x[:50]:
        assert strategy_reasons(tight.sim.graph, tight.strategy(row)) == ()


def test_masks_exclude_only_what_cannot_be_completed(tight: ShardingProblem) -> None:
    """Every legal random row passes every mask."""
    rng = np.random.default_rng(1)
    x = np.stack([rng.integers(0, n, 20000) for n in tight.num_options], 1)
    points = rng.integers(0, len(tight.sim.points), 20000)
    x[:, : tight.num_degree_components] = tight._rows[points]
    x = x[tight.legal(x)]
    assert len(x) > 50
    rows = np.arange(len(x))
    for position in range(x.shape[1]):
        assert tight.mask(x, position)[rows, x[:, position]].all()


def test_nearest_choices_are_those_of_a_walk_through_the_masks(tight: ShardingProblem) -> None:
    rng = np.random.default_rng(3)
    x = np.stack([rng.integers(0, n, 3000) for n in tight.num_options], 1)
    first = tight.num_degree_components
    x[:, :first] = tight._rows[rng.integers(0, len(tight.sim.points), len(x))]
    expected, rows = x.copy(), np.arange(len(x))
    for position in range(first, x.shape[1]):
        allowed = tight.mask(expected, position)
        distance = np.abs(np.arange(allowed.shape[1]) - x[:, position, None])
        expected[rows, position] = np.where(allowed, distance, 99).argmin(1)
    found = tight.nearest_choices(x)
    assert (found == expected).all()
    overfull = (found != tight.with_legal_choices(x)).any(1)
    assert 100 < overfull.sum() < 2900, "memory must bind in some rows and not in others"


def test_calls_are_counted_and_end_with_the_budget(tight: ShardingProblem) -> None:
    problem = ShardingProblem(tight.sim, budget=30)
    x = walk(problem, 25, 2)
    assert problem.calls == 0
    assert len(problem.evaluate(x)) == 25 and problem.calls == 25
    assert len(problem.evaluate(x)) == 5 and problem.calls == 30
    assert len(problem.evaluate(x)) == 0 and problem.calls == 30


def test_megatron_points_are_megatron(tight: ShardingProblem) -> None:
    rows = tight.megatron_points()
    points, tp = len(tight.sim.points), tight.sim.points.tp
    # Nothing to shard the residual over at tp = 1, tokens stay whole over stages, nothing is exchanged at ep = 1.
    kinds = 1 + (tp > 1) + ((tp > 1) & (tight.sim.points.pp == 1))
    assert len(rows) == (kinds * (1 + (tight.sim.points.ep > 1))).sum()
    by_tokens = dict(tight.strategy(rows[points:][(tp > 1).sum()]).choices)
    assert by_tokens[RESIDUAL] == 1 and by_tokens["layers/attn_norm"] == 1
    assert any(tight.strategy(row).exchange for row in rows[-3:])
    sharded = dict(tight.strategy(rows[points:][: (tp > 1).sum()][tp[tp > 1] == 8][0]).choices)
    assert sharded[RESIDUAL] == 0 and sharded["layers/attn_norm"] == 0
    assert sharded["layers/q"] == 0 and sharded["layers/o"] == 1
    assert len(np.unique(rows, axis=0)) == len(rows)
    rows = rows[:points]
    split = rows[tight.sim.points.tp == 8]
    chosen = dict(tight.strategy(split[0]).choices)
    assert chosen["layers/q"] == 0 and chosen["layers/o"] == 1 and chosen[RESIDUAL] is None
    whole = rows[tight.sim.points.tp == 1]
    assert all(c is None for k, c in tight.strategy(whole[0]).choices if not k.startswith("layers/experts"))


def test_pins_hold() -> None:
    graph = GraphMaker().graph("mm")
    sim = Simulator(graph, parse_cluster("H100x4"), Workload(), pinned={"layers/o": 0, RESIDUAL: 0})
    problem = ShardingProblem(sim)
    x = walk(problem, 200, 3)
    for row in x:
        strategy = problem.strategy(row)
        assert strategy.choice("layers/o") == 0 and strategy.choice(RESIDUAL) == 0 and strategy.degrees.tp > 1


def test_points_that_do_not_fit_are_left_out() -> None:
    small = parse_cluster("H100x16")
    small = replace(small, device=replace(small.device, memory_bytes=20e9))
    sim = Simulator(mixtral_like(), small, Workload())
    assert sim.any_fits and len(sim.points) < sim.num_points_before_memory
    assert (sim.minimum_bytes() <= 20e9).all()


def test_prefix_sets() -> None:
    rows = np.array([[0, 1, 2], [0, 2, 0], [1, 0, 1]])
    prefixes = PrefixSet(rows, np.array([2, 3, 3]))
    x = np.array([[0, 0, 0], [1, 0, 0]])
    assert prefixes.allowed(x, 0).tolist() == [[True, True], [True, True]]
    assert prefixes.allowed(x, 1).tolist() == [[False, True, True], [True, False, False]]
    assert prefixes.index(np.array([[0, 2, 0], [1, 0, 1], [1, 1, 1], [0, 1, 9]])).tolist() == [1, 2, -1, -1]
