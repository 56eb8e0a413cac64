"""The executable space is the search space: all combinations of choices, and random strategies, on simulated ranks.

Wide (``-m wide``): minutes a family. ``AUTOSHARD_RANDOM_STRATEGIES`` and ``AUTOSHARD_RANDOM_SEED`` change the draw.
``python -m docs.make_sweeps`` runs the same and writes docs/sweeps.md.
"""

import os

import pytest

from tests.validate.sweeps import SWEPT, Outcome, run_combinations, run_random

COUNT = int(os.environ.get("AUTOSHARD_RANDOM_STRATEGIES", "300"))
SEED = int(os.environ.get("AUTOSHARD_RANDOM_SEED", "4"))


def check(found: Outcome, count: int | None = None) -> None:
    print(found)
    assert not found.failed, "\n".join(found.failed[:20])
    assert found.worst < 1e-9
    assert count is None or len(found.reports) == count


@pytest.mark.wide
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", SWEPT)
def test_every_combination(name: str) -> None:
    check(run_combinations(name))


@pytest.mark.wide
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", SWEPT)
def test_random_strategies_on_simulated_ranks(name: str) -> None:
    check(run_random(name, COUNT, SEED, simulated=True), COUNT)


@pytest.mark.wide
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", SWEPT)
def test_random_strategies_on_real_ranks(name: str) -> None:
    check(run_random(name, 20, SEED + 1, simulated=False), 20)


@pytest.mark.parametrize("name", ["gpt_oss", pytest.param("deepseek_v3", marks=pytest.mark.wide)])
def test_a_sample_of_the_combinations(name: str) -> None:
    """Every 151st: neighbours in the list differ in their last matrices, these in all of them."""
    check(run_combinations(name, slice(7, None, 151)))
