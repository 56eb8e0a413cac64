import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from autoshard.search import random_search
from autoshard.search.proposals import mutate, project, sample
from tests.search.toy import ToyProblem


@settings(max_examples=20)
@given(budget=st.integers(0, 1100), seed=st.integers(0, 9))
def test_spends_the_budget_exactly(budget: int, seed: int) -> None:
    problem = ToyProblem(num_gpus=12, budget=budget)
    assert random_search.search(problem, seed=seed).calls == problem.calls == budget


def test_a_seed_repeats() -> None:
    first, again, other = (random_search.search(ToyProblem(budget=300), seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first.history != other.history


def test_a_small_space_is_exhausted_and_the_search_ends() -> None:
    problem = ToyProblem(num_gpus=4, num_ops=1, budget=100_000)
    result = random_search.search(problem, seed=0)
    assert result.calls < 1000
    assert result.throughput == problem.optimum()


def test_samples_and_mutations_are_legal() -> None:
    problem, rng = ToyProblem(num_gpus=36), np.random.default_rng(0)
    x = sample(problem, 200, rng)
    assert problem.legal(x).all()
    assert problem.legal(mutate(problem, x, 400, rng)).all()


@given(st.data())
def test_projection_makes_anything_legal_and_leaves_the_legal_alone(data: st.DataObject) -> None:
    problem = ToyProblem(num_gpus=12, num_ops=3)
    options = st.integers(-2, 20)
    x = np.array([data.draw(st.lists(options, min_size=8, max_size=8))])
    y = project(problem, x)
    assert problem.legal(y).all()
    assert (project(problem, y) == y).all()


def test_mutations_reach_coupled_degrees() -> None:
    """Halving the group and doubling the pipeline at once is one mutation away."""
    problem, rng = ToyProblem(num_gpus=24), np.random.default_rng(0)
    x = sample(problem, 1, rng)
    moved = (mutate(problem, x, 2000, rng)[:, :5] != x[:, :5]).sum(1)
    assert {1, 2, 3, 4} <= set(moved.tolist())
