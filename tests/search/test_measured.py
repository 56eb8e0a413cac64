"""Search over measurements that are handed in: counted, resumable rounds on the real problem's masks."""

from collections.abc import Sequence

import numpy as np

from autoshard.hardware import parse_cluster
from autoshard.search.measured import MeasuredProblem
from autoshard.search.rounds import LATER_ROUNDS, search
from autoshard.sharding import Strategy
from autoshard.simulator import Simulator
from autoshard.workload import Workload
from tests.graphs import GraphMaker


class Clock:
    """Pretends to measure: a strategy is as fast as it has choices of 1; tp = 4 fails. Counts what it is asked."""

    def __init__(self) -> None:
        self.batches: list[int] = []

    def __call__(self, rows: np.ndarray, strategies: Sequence[Strategy]) -> list[float]:
        self.batches.append(len(rows))
        assert len(rows) == len(strategies) == len({row.tobytes() for row in rows})
        return [0.0 if s.degrees.tp == 4 else 1.0 + sum(c == 1 for _, c in s.choices) for s in strategies]


def problem(budget: int) -> tuple[MeasuredProblem, Clock]:
    clock = Clock()
    sim = Simulator(GraphMaker().graph("mm"), parse_cluster("H100x4"), Workload(context=32), fixed={"batch": 8})
    return MeasuredProblem(sim, clock, budget=budget), clock


def test_rounds_spend_the_budget_in_few_batches_and_improve() -> None:
    p, clock = problem(40)
    found = search(p, seed=0)
    # Half at first, then the other half in three rounds: 20, 7, 7, 6.
    assert clock.batches == [20, 7, 7, 6] and len(clock.batches) == 1 + LATER_ROUNDS
    assert found.calls == p.calls == 40
    first_half = max(rate for call, rate in found.history if call <= 20)
    assert found.throughput > first_half  # mutations of the best got further than uniform draws
    assert p.strategy(found.best).degrees.tp != 4
    again, _ = problem(40)
    assert search(again, seed=0) == found
    other, _ = problem(40)
    assert search(other, seed=1).best != found.best or search(other, seed=1).history != found.history


def test_a_budget_of_one_is_one_measurement() -> None:
    p, clock = problem(1)
    assert search(p, seed=0).calls == 1 and clock.batches == [1]


def test_illegal_rows_are_counted_and_not_measured() -> None:
    p, clock = problem(5)
    x = np.zeros((2, len(p.num_options)), dtype=np.int64)
    x[1] = p.megatron_points()[0]
    x[0, 1:3] = p.num_options[1:3] - 1  # pp and tp both at their largest on a group of one: no such point
    assert not p.legal(x)[0] and p.legal(x)[1]
    scores = p.evaluate(x)
    assert p.calls == 2 and clock.batches == [1]
    assert scores.throughput[0] == 0 and scores.violation[0] == 1
    assert (scores.throughput[1] > 0) == (scores.violation[1] == 0)
