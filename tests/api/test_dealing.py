"""Stages balanced after the search: which, what they gain, and what of the plan stays that of even stages."""

import itertools
from pathlib import Path

import numpy as np
import pytest
from transformers import LlamaConfig

from autoshard import Plan, autoshard
from autoshard.api.build_plan import build_plan
from autoshard.api.dealing import as_solved, deal, fastest, others
from autoshard.api.explain import explain
from autoshard.api.solve import Solution, make_simulator, solve
from autoshard.hardware import parse_cluster
from autoshard.sharding import partition
from autoshard.simulator import Simulator
from autoshard.workload import Workload
from tests.graphs import GraphMaker
from tests.traced import traced

FIXED = {"pp": 4, "dp": 16, "tp": 1, "ep": 16, "batch": 10240}


@pytest.fixture(scope="module")
def deepseek() -> Solution:
    """What exact takes of DeepSeek-V3 (3 dense and 58 MoE layers) in decode on 64 H100s."""
    return solve(
        make_simulator(traced("deepseek-v3"), parse_cluster("H100x64"), Workload(), fixed=FIXED), algorithm="exact"
    )


def test_the_gain_is_that_of_the_slowest_stage(deepseek: Solution) -> None:
    # Even stages are 15, 15, 16, 15, of which the third waits for 16 MoE layers. One layer more for the first stage
    # (3 dense, 13 MoE) leaves 15 MoE layers and the head, the last stage, as the slowest.
    sim, dealt = deepseek.simulator, deal(deepseek)
    at, dims = np.array([0]), np.array([deepseek.dims])
    seconds = {part.name: float(part.seconds(at, dims)[0]) for part in sim.parts}
    dense, moe = (seconds[block.name] for block in sim.graph.blocks)
    before, after = 16 * moe, 15 * moe + seconds["epilogue"]
    assert seconds["prologue"] + 3 * dense + 13 * moe < after < before
    assert dealt.simulator.stages == (16, 15, 15, 15)
    send = float(sim.send_s[0, deepseek.dims[0]])
    assert dealt.gain == pytest.approx((before + send) / (after + send) - 1)
    assert 0.02 < dealt.gain < 0.04


def test_the_plan_says_so_and_its_optimum_stays(deepseek: Solution, tmp_path: Path) -> None:
    dealt = deal(deepseek)
    plan, even = (Plan(build_plan(deepseek, None, d)) for d in (dealt, as_solved(deepseek)))
    assert plan.data.stages == plan.strategy.stages == (16, 15, 15, 15)
    assert even.data.stages == (15, 15, 16, 15) and even.strategy.stages == ()
    assert dealt.gain and even.data.search.balanced_gain is None
    assert plan.data.search.balanced_gain == dealt.gain
    rate, before = (p.predicted.tokens_per_s_per_gpu for p in (plan, even))
    assert rate == pytest.approx(before * (1 + dealt.gain))
    assert plan.data.search.exact_tokens_per_s_per_gpu == even.data.search.exact_tokens_per_s_per_gpu < rate
    assert plan.data.search.regret_to_exact == 0
    assert sum(t.seconds for t in plan.predicted.terms) == pytest.approx(plan.predicted.step_s)
    plan.save(tmp_path / "plan.json")
    read = Plan.load(tmp_path / "plan.json")
    assert read.data == plan.data
    assert explain(read.data)["predicted"]["tokens_per_s_per_gpu"] == pytest.approx(rate)


@pytest.mark.parametrize(("kinds", "pp"), [("dddmmm", 2), ("ddmmm", 3)])
def test_no_partition_is_faster(kinds: str, pp: int) -> None:
    graph, cluster = GraphMaker(vocab=65536).graph(kinds), parse_cluster(f"H100x{2 * pp}")
    fixed = {"pp": pp, "tp": 2, "dp": 1, "ep": 1, "batch": 8 * pp}
    solution = solve(make_simulator(graph, cluster, Workload(context=256), fixed=fixed), algorithm="exact")
    dealt = deal(solution)
    rates = {}
    for cuts in itertools.combinations(range(1, len(kinds)), pp - 1):
        stages = tuple(b - a for a, b in itertools.pairwise((0, *cuts, len(kinds))))
        sim = Simulator(graph, cluster, Workload(context=256), fixed=fixed, stages=stages)
        e = sim.evaluate(np.array([0]), np.array([solution.dims]))
        rates[stages] = float(e.tokens_per_s[0])
    even = partition(len(kinds), pp)
    best = max(rates.values())
    assert rates[dealt.simulator.stages or even] == pytest.approx(best)
    assert 1 + (dealt.gain or 0.0) == pytest.approx(best / rates[even])


def test_stages_by_hand_and_even_ones_are_left() -> None:
    # A head of 151936 x 1024 (156 M) in the last stage, beside layers of 8 M: even stages wait for it and 3 layers.
    config = LlamaConfig(
        hidden_size=1024, intermediate_size=1024, num_hidden_layers=6, num_attention_heads=8, vocab_size=151936
    )
    fix = "pp=2,tp=1,dp=1,batch=32"
    balanced, even, by_hand = (
        autoshard(config, "H100x2", Workload(context=64), search="exact", fix=fix, stages=stages)
        for stages in (None, "even", "2,4")
    )
    assert balanced.strategy.stages[0] > 3 > balanced.strategy.stages[1]
    assert even.strategy.stages == () and even.data.stages == (3, 3)
    assert by_hand.strategy.stages == (2, 4)
    assert even.data.search.balanced_gain is by_hand.data.search.balanced_gain is None
    gain = balanced.data.search.balanced_gain
    assert gain and balanced.predicted.tokens_per_s == pytest.approx(even.predicted.tokens_per_s * (1 + gain))


@pytest.mark.wide
def test_other_degrees_are_dealt_and_ranked_after() -> None:
    # 3 dense and 58 MoE layers on 4 stages wait for 16 MoE layers where they are dealt evenly, on one stage for none.
    sim = make_simulator(
        traced("deepseek-v3"), parse_cluster("H100x64"), Workload(), fixed={"tp": 1, "dp": 16, "batch": 10240}
    )
    solution = solve(sim, algorithm="exact")
    rest = others(solution)
    assert any(dealt.gain for _, dealt in rest)
    rates: list[float] = []
    for other, dealt in rest:
        point, dims = np.array([dealt.point]), np.array([dealt.dims])
        rates.append(float(dealt.simulator.evaluate(point, dims).tokens_per_s[0]))
        even = float(other.simulator.evaluate(np.array([other.point]), np.array([other.dims])).tokens_per_s[0])
        assert rates[-1] == pytest.approx(even * (1 + (dealt.gain or 0.0)))
    assert rates == sorted(rates, reverse=True)
    named = build_plan(solution, None, deal(solution), [d for _, d in rest]).alternatives
    assert [a.tokens_per_s_per_gpu * 64 for a in named] == pytest.approx(rates)


def test_what_is_fastest_after_dealing_is_the_plan(deepseek: Solution) -> None:
    even, dealt = as_solved(deepseek), deal(deepseek)
    # The same strategy twice, once balanced: that one is taken, the other named after it.
    solution, taken, rest = fastest(deepseek, even, ((deepseek, dealt),))
    assert taken is dealt and [d for _, d in rest] == [even] and solution is deepseek
    assert fastest(deepseek, dealt, ((deepseek, even),)) == (deepseek, dealt, ((deepseek, even),))
