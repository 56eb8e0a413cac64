import pytest

from autoshard.search import megatron
from tests.search.toy import ToyProblem


def test_is_the_best_of_all_its_points() -> None:
    problem = ToyProblem(budget=100_000)
    points = problem.megatron_points()
    result = megatron.search(problem, seed=7)
    assert result.calls == len(points)
    assert result.throughput == problem.score(points).throughput.max()
    assert (result.algorithm, result.seed, result.note) == ("megatron", 7, "")


@pytest.mark.parametrize("budget", [0, 1, 37])
def test_says_when_the_budget_cuts_it_off(budget: int) -> None:
    problem = ToyProblem(budget=budget)
    num_points = len(problem.megatron_points())
    result = megatron.search(problem, seed=0)
    assert result.calls == problem.calls == budget
    assert f"first {budget} of {num_points} strategies" in result.note
