"""What every search must do, whatever its idea: learn, repeat, keep to the budget, the masks and the protocol."""

from functools import partial

import numpy as np
import pytest

from autoshard.search import anneal, evolution, mcmc, rl, walk
from autoshard.search.proposals import neighbours, sample, step
from tests.search.toy import ToyProblem

PAPER = partial(rl.search, config=rl.PAPER, name="rl-paper")
LOCAL = [("anneal", anneal.search), ("mcmc", mcmc.search), ("walk", walk.search)]
ALL = [*LOCAL, ("evolution", evolution.search), ("rl-paper", PAPER)]


@pytest.mark.parametrize("name, search", ALL)
def test_a_seed_repeats_and_the_result_is_what_it_says(name: str, search) -> None:  # type: ignore[no-untyped-def]
    first, again, other = (search(ToyProblem(budget=250, strict=False), seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first.history != other.history
    assert (first.algorithm, first.seed, first.calls) == (name, 1, 250)
    assert first.best is not None
    assert ToyProblem().score(np.array([first.best])).throughput[0] == first.throughput


@pytest.mark.parametrize("name, search", ALL)
@pytest.mark.parametrize("budget", [0, 1, 2, 67, 130])
def test_never_exceeds_the_budget(name: str, search, budget: int) -> None:  # type: ignore[no-untyped-def]
    problem = ToyProblem(budget=budget, strict=False)
    result = search(problem, seed=0)
    assert result.calls == problem.calls == budget, name


@pytest.mark.parametrize("name, search", LOCAL)
def test_stays_inside_the_masks_and_ends_in_a_small_space(name: str, search) -> None:  # type: ignore[no-untyped-def]
    problem = ToyProblem(num_gpus=4, num_ops=1, budget=100_000)  # its `evaluate` asserts legality
    result = search(problem, seed=0)
    assert result.calls < 1000, name
    assert result.throughput == pytest.approx(problem.optimum())


@pytest.mark.parametrize("name, search", LOCAL)
def test_nothing_feasible_is_said(name: str, search) -> None:  # type: ignore[no-untyped-def]
    result = search(ToyProblem(slo=1e-6, budget=100), seed=0)
    assert (result.best, result.throughput, result.calls) == (None, 0.0, 100), name


@pytest.mark.parametrize("num_gpus, toy_seed, slo", [(24, 0, 0.0), (32, 2, 2.0)])
def test_annealing_finds_the_optimum(num_gpus: int, toy_seed: int, slo: float) -> None:
    optimum = ToyProblem(num_gpus=num_gpus, num_ops=5, seed=toy_seed, slo=slo).optimum()
    for seed in range(2):
        problem = ToyProblem(num_gpus=num_gpus, num_ops=5, seed=toy_seed, slo=slo, budget=1500)
        assert anneal.search(problem, seed=seed).throughput == pytest.approx(optimum, rel=1e-9), seed


@pytest.mark.wide
def test_evolution_finds_the_optimum_of_a_small_problem_and_ends() -> None:
    problem = ToyProblem(num_gpus=4, num_ops=2, budget=250)
    result = evolution.search(problem, seed=0)
    assert result.throughput == pytest.approx(problem.optimum(), rel=1e-9)


def test_keys_decode_to_every_legal_strategy_and_no_other() -> None:
    """0 is the first allowed option of every component, 1 the last; random keys reach all legal strategies."""
    problem = ToyProblem(num_gpus=4, num_ops=1)
    first, last = evolution.decode(problem, np.array([[0.0] * 6, [1.0] * 6]))
    for x, pick in ((first, np.argmax), (last, lambda a: len(a) - 1 - int(np.argmax(a[::-1])))):
        for position in range(6):
            assert x[position] == pick(problem.mask(x[None], position)[0])
    found = evolution.decode(problem, np.random.default_rng(0).random((20_000, 6)))
    assert problem.legal(found).all()
    everything = sample(problem, 20_000, np.random.default_rng(1))
    assert {tuple(x) for x in found.tolist()} == {tuple(x) for x in everything.tolist()}


def test_a_chain_of_single_edits_finds_the_optimum_of_a_small_problem() -> None:
    problem = ToyProblem(num_gpus=4, num_ops=2, budget=400)
    assert mcmc.search(problem, seed=0).throughput == pytest.approx(problem.optimum(), rel=1e-9)


def test_the_papers_agent_finds_something_without_masks() -> None:
    """Far fewer than one in ten uniform draws is feasible; what it keeps is better than the typical feasible one."""
    problem = ToyProblem(num_gpus=24, num_ops=5, budget=400, strict=False)
    typical = np.median(problem.score(sample(problem, 500, np.random.default_rng(0))).throughput)
    assert PAPER(problem, seed=0).throughput > 2 * typical
    paper = (rl.PAPER.history, rl.PAPER.confidence, rl.PAPER.chunks, rl.PAPER.mutation_share, rl.PAPER.imitation)
    assert paper == (3, 0.95, 5, 0.0, 0.0)


def test_a_step_edits_one_component_and_what_it_pulls_along() -> None:
    problem, rng = ToyProblem(num_gpus=24), np.random.default_rng(0)
    x = sample(problem, 500, rng)
    y = step(problem, x, rng)
    assert problem.legal(y).all()
    changed = (x != y).sum(1)
    assert np.median(changed) == 1 and (changed > 0).mean() > 0.7
    assert problem.legal(neighbours(problem, x, rng)).all()
