"""The executable space is the search space: all combinations of choices, and random strategies, on simulated ranks.

Wide (``-m wide``): minutes a family. ``AUTOSHARD_RANDOM_STRATEGIES`` and ``AUTOSHARD_RANDOM_SEED`` change the draw.
"""

import os

import pytest

from autoshard.ir import OpGraph
from autoshard.tracing import trace_source
from autoshard.validate import Case, ModelJob, ValidationReport, validate
from tests.validate.strategies import random_strategies
from tests.validate.sweeps import SWEPT, sweep, swept_source

SIZES = {"mixtral": 729, "qwen3-moe": 729, "olmoe": 729, "gpt_oss": 729, "deepseek_v3": 486, "gpt-moe": 729}
"""3^4 x 3^2; a latent attention has 3 x 3 x 2 x 3 (its kv_b is not split by what it contracts)."""
COUNT = int(os.environ.get("AUTOSHARD_RANDOM_STRATEGIES", "300"))
SEED = int(os.environ.get("AUTOSHARD_RANDOM_SEED", "4"))


def graph_of(name: str) -> OpGraph:
    return trace_source(swept_source(name))


def run(name: str, graph: OpGraph, cases: list[Case], nproc: int, *, simulated: bool = True) -> list[ValidationReport]:
    job = ModelJob(
        source=swept_source(name).to_dict(),
        graph=graph,
        cases=tuple(cases),
        dtypes=("float64",),
        sequences=nproc,
        lengths=(6, 1),
    )
    reports = validate([job], nproc=nproc, simulated=simulated, timeout_s=3000)
    failed = [f"{r.name} {r.degrees}: {r.difference}" for r in reports if not r.passed]
    worst = max(r.logits_max_rel_err for r in reports)
    print(f"{name}: {len(reports)} strategies on {nproc} ranks, {len(failed)} differ, worst error {worst:.1e}")
    assert not failed, "\n".join(failed[:20])
    return list(reports)


@pytest.mark.wide
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", SWEPT)
def test_every_combination(name: str) -> None:
    graph = graph_of(name)
    cases = [Case(name=combination, strategy=s) for combination, s in sweep(graph, 2)]
    assert name not in SIZES or len(cases) == SIZES[name]
    run(name, graph, cases, 2)


@pytest.mark.wide
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", SWEPT)
def test_random_strategies_on_simulated_ranks(name: str) -> None:
    graph = graph_of(name)
    drawn = random_strategies(graph, 4, COUNT, SEED)
    run(name, graph, [Case(name=f"random, seed {SEED}, no {i}", strategy=s) for i, s in enumerate(drawn)], 4)


@pytest.mark.wide
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", SWEPT)
def test_random_strategies_on_real_ranks(name: str) -> None:
    graph = graph_of(name)
    drawn = random_strategies(graph, 4, 20, SEED + 1)
    cases = [Case(name=f"random, seed {SEED + 1}, no {i}", strategy=s) for i, s in enumerate(drawn)]
    run(name, graph, cases, 4, simulated=False)


@pytest.mark.parametrize("name", ["gpt_oss", pytest.param("deepseek_v3", marks=pytest.mark.wide)])
def test_a_sample_of_the_combinations(name: str) -> None:
    """Every 151st: neighbours in the list differ in their last matrices, these in all of them."""
    graph = graph_of(name)
    cases = [Case(name=combination, strategy=s) for combination, s in sweep(graph, 2)]
    assert len(cases) == SIZES[name]
    run(name, graph, cases[7::151], 2)
