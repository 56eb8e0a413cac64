import dataclasses
import inspect

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from autoshard.errors import InvalidInputError
from autoshard.search import rl
from autoshard.search.protocol import Problem
from tests.search.toy import ToyProblem

QUICK = rl.RLConfig(width=16, heads=2, batch=20, epochs=1)


class Only:
    """Passes on what the protocol names and nothing else."""

    def __init__(self, problem: ToyProblem) -> None:
        self._problem = problem

    def __getattr__(self, name: str):
        public = [n for n, _ in inspect.getmembers(Problem) if not n.startswith("_")]
        assert name in public, f"{name} is not part of the protocol"
        return getattr(self._problem, name)


@pytest.mark.parametrize(
    "num_gpus, toy_seed, slo", [(24, 0, 0.0), pytest.param(36, 1, 0.0, marks=pytest.mark.wide), (32, 2, 2.0)]
)
def test_learns_the_optimum(num_gpus: int, toy_seed: int, slo: float) -> None:
    optimum = ToyProblem(num_gpus=num_gpus, num_ops=5, seed=toy_seed, slo=slo).optimum()
    assert optimum > 0
    for seed in range(3):
        problem = ToyProblem(num_gpus=num_gpus, num_ops=5, seed=toy_seed, slo=slo, budget=1000)
        result = rl.search(problem, seed=seed)
        assert result.throughput == pytest.approx(optimum, rel=1e-9), (seed, result.history)


def test_the_policy_itself_learns() -> None:
    """Without mutations, the typical strategy drawn late is far better than the typical one drawn first."""
    problem = ToyProblem(num_gpus=32, num_ops=8, seed=3, budget=1000)
    drawn: list[float] = []
    evaluate = problem.evaluate

    def listen(x):
        scores = evaluate(x)
        drawn.extend(scores.throughput.tolist())
        return scores

    problem.evaluate = listen
    rl.search(problem, seed=0, config=rl.RLConfig(mutation_share=0.0, sweep_share=0.0, chunks=1, confidence=1.0))
    assert np.median(drawn[-200:]) > 3 * np.median(drawn[:200])


def test_result_says_what_was_found_and_when() -> None:
    problem = ToyProblem(budget=200)
    result = rl.search(problem, seed=0, config=QUICK)
    assert result.best is not None
    assert problem.score(np.array([result.best])).throughput[0] == result.throughput
    assert (result.algorithm, result.seed, result.calls) == ("rl", 0, 200)
    calls, values = zip(*result.history, strict=True)
    assert list(calls) == sorted(calls) and list(values) == sorted(values)
    assert result.history[-1] == (200, result.throughput)
    assert (result.found_at_call, result.throughput) in result.history


def test_a_seed_repeats_and_global_state_is_left_alone() -> None:
    torch.manual_seed(1)
    np.random.seed(1)
    threads, torch_state, numpy_state = torch.get_num_threads(), torch.get_rng_state(), np.random.get_state()[1].copy()
    first = rl.search(ToyProblem(budget=300), seed=5, config=QUICK)
    assert torch.equal(torch_state, torch.get_rng_state())
    assert (numpy_state == np.random.get_state()[1]).all()
    assert threads == torch.get_num_threads()
    torch.manual_seed(2)
    assert rl.search(ToyProblem(budget=300), seed=5, config=QUICK) == first
    assert rl.search(ToyProblem(budget=300), seed=6, config=QUICK).history != first.history


@settings(max_examples=15)
@given(budget=st.integers(0, 170), chunks=st.integers(1, 6), islands=st.booleans(), batch=st.integers(1, 60))
@example(budget=1, chunks=1, islands=False, batch=1)
def test_never_exceeds_the_budget(budget: int, chunks: int, islands: bool, batch: int) -> None:
    problem = ToyProblem(num_gpus=6, num_ops=3, budget=budget)
    config = dataclasses.replace(QUICK, chunks=chunks, islands=islands, batch=batch)
    result = rl.search(problem, seed=0, config=config)
    assert result.calls == problem.calls <= budget
    assert budget or result.best is None


def test_counts_only_its_own_calls() -> None:
    problem = ToyProblem(budget=200)
    problem.evaluate(problem.megatron_points()[:50])
    result = rl.search(problem, seed=0, config=QUICK)
    assert (result.calls, problem.calls) == (150, 200)


def test_reads_nothing_but_the_protocol_and_stays_inside_the_masks() -> None:
    toy = ToyProblem(budget=300)  # its `evaluate` asserts that every strategy is legal
    assert rl.search(Only(toy), seed=0, config=QUICK) == rl.search(ToyProblem(budget=300), seed=0, config=QUICK)


def test_evaluates_nothing_twice() -> None:
    problem = ToyProblem(num_gpus=4, num_ops=2, budget=300)
    seen: list[bytes] = []
    evaluate = problem.evaluate

    def listen(x):
        seen.extend(row.tobytes() for row in x)
        return evaluate(x)

    problem.evaluate = listen
    rl.search(problem, seed=0, config=QUICK)
    assert len(seen) == len(set(seen))


def test_a_space_smaller_than_the_budget_ends() -> None:
    problem = ToyProblem(num_gpus=4, num_ops=1, budget=100_000)
    result = rl.search(problem, seed=0, config=QUICK)
    assert result.calls < 100_000
    assert result.throughput == pytest.approx(problem.optimum())


def test_nothing_feasible_is_said_and_not_invented() -> None:
    result = rl.search(ToyProblem(slo=1e-6, budget=100), seed=0, config=QUICK)
    assert (result.best, result.throughput, result.found_at_call, result.calls) == (None, 0.0, 0, 100)


@pytest.mark.parametrize("wrong", [{"chunks": 0}, {"confidence": 1.5}, {"mutation_share": -0.1}, {"width": 30}])
def test_wrong_settings_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidInputError, match=next(iter(wrong))):
        rl.RLConfig(**wrong)
