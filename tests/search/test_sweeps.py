"""Moves from one strategy: all of them, legal, none twice, none the strategy itself."""

import numpy as np
import pytest

from autoshard.search.climbs import ClimbConfig, Climber
from autoshard.search.elites import Memory
from autoshard.search.protocol import Scores
from autoshard.search.result import Recorder
from autoshard.search.sweeps import (
    combined,
    crossed_moves,
    degree_moves,
    freed_edits,
    opened_edits,
    pair_edits,
    run_edits,
    single_edits,
    split_runs,
    twin_edits,
)
from tests.search.toy import NUM_DEGREES, ToyProblem


@pytest.fixture(scope="module")
def roomy() -> ToyProblem:
    """12 devices and 7 operators so small that any choices fit at a batch of 32 sequences."""
    problem = ToyProblem(num_gpus=12, num_ops=7)
    problem.weight = problem.weight / 50
    return problem


@pytest.fixture(scope="module")
def x(roomy: ToyProblem) -> np.ndarray:
    """group 12, pp 1, tp 6, ep 2, batch 32 (divisors are 1 2 3 4 6 12); every operator split."""
    strategy = np.array([5, 0, 4, 1, 5, 0, 1, 0, 1, 0, 1, 0])
    assert roomy.legal(strategy[None]).all()
    return strategy


def changed(rows: np.ndarray, x: np.ndarray) -> np.ndarray:
    return (rows != x).sum(1)


def test_every_move_is_legal_and_new(roomy: ToyProblem, x: np.ndarray) -> None:
    donors = np.array([[5, 0, 4, 1, 5, 2, 2, 2, 2, 2, 2, 2]])
    for rows in (single_edits(roomy, x), pair_edits(roomy, x), run_edits(roomy, x, donors), degree_moves(roomy, x)):
        assert len(rows) and roomy.legal(rows).all()
        assert (changed(rows, x) > 0).all()
        assert len(np.unique(rows, axis=0)) == len(rows)


def test_single_edits_try_every_other_choice(roomy: ToyProblem, x: np.ndarray) -> None:
    rows = single_edits(roomy, x)
    of_choices = rows[(rows[:, :NUM_DEGREES] == x[:NUM_DEGREES]).all(1)]
    # Seven operators of three options: two others each.
    assert len(of_choices) == 7 * 2
    assert (changed(of_choices, x) == 1).all()


def test_pair_edits_change_two_near_choices(roomy: ToyProblem, x: np.ndarray) -> None:
    rows = pair_edits(roomy, x)
    # 6 pairs of neighbours and 5 next but one, of which both take one of two other options.
    assert len(rows) == (6 + 5) * 4
    assert (changed(rows, x) == 2).all()


def test_a_run_reaches_what_no_pair_does(roomy: ToyProblem, x: np.ndarray) -> None:
    """Four operators replicated at once: the move that an FFN needs, here without a donor that has it."""
    wanted = x.copy()
    wanted[6:10] = 2
    rows = run_edits(roomy, x, x[None][:0])
    assert (rows == wanted).all(1).any()
    donor = x.copy()
    donor[6:9] = (0, 2, 0)
    taken = run_edits(roomy, x, donor[None])
    assert (taken == donor).all(1).any()
    assert not (rows == donor).all(1).any()


def test_the_batch_is_filled_up_after_the_degrees_moved(roomy: ToyProblem, x: np.ndarray) -> None:
    rows = degree_moves(roomy, x)
    degrees = [5, 0, 5, 1]  # tp 12 in place of 6
    batches = rows[(rows[:, :4] == degrees).all(1), 4]
    allowed = np.flatnonzero(roomy.mask(np.array([[*degrees, *x[4:]]]), 4)[0])
    assert {int(allowed[-1]), int(allowed[-2])} <= set(batches.tolist())


def test_moves_that_touch_different_components_are_made_at_once(roomy: ToyProblem, x: np.ndarray) -> None:
    first, second, third = x.copy(), x.copy(), x.copy()
    first[6], second[8], third[6] = 2, 2, 0
    expected = x.copy()
    expected[[6, 8]] = 2  # the third touches what the first has
    assert combined(roomy, x, np.stack([first, second, third])).tolist() == [expected.tolist()]


class Settled(ToyProblem):
    """At a group as large as ep the last two choices are settled: replicated (as experts within one rank are)."""

    def with_legal_choices(self, x: np.ndarray) -> np.ndarray:
        y = x.copy()
        y[x[:, 0] == x[:, 3], -2:] = 2
        return y

    def legal(self, x: np.ndarray) -> np.ndarray:
        legal: np.ndarray = super().legal(x) & (self.with_legal_choices(x) == x).all(1)
        return legal

    def mask(self, x: np.ndarray, position: int) -> np.ndarray:
        allowed = super().mask(x, position)
        if position >= len(self.num_options) - 2:
            allowed[x[:, 0] == x[:, 3], :2] = False
        return allowed


def test_choices_that_a_move_of_the_degrees_opens_are_tried_with_it() -> None:
    problem = Settled(num_gpus=12, num_ops=7)
    problem.weight = problem.weight / 50
    x = np.array([5, 0, 4, 5, 5, 0, 1, 0, 1, 0, 2, 2])
    assert problem.legal(x[None]).all()
    moved = x.copy()
    moved[3] = 1  # ep 2 in place of the whole group
    rows = opened_edits(problem, x, moved[None])
    # Two neighbours of three options: nine combinations, all at the degrees moved to.
    assert len(rows) == 9 and (rows[:, :-2] == moved[:-2]).all()
    assert {tuple(r) for r in rows[:, -2:].tolist()} == {(a, b) for a in range(3) for b in range(3)}
    assert len(opened_edits(problem, x, x[None])) == 0  # where nothing is opened, nothing is tried


def test_moves_of_the_degrees_take_the_choices_of_others(roomy: ToyProblem, x: np.ndarray) -> None:
    donor = x.copy()
    donor[NUM_DEGREES:] = 2
    rows = crossed_moves(roomy, x, np.stack([x, donor]))
    assert (rows[:, NUM_DEGREES:] == 2).all() and len(np.unique(rows[:, :4], axis=0)) > 5
    assert len(crossed_moves(roomy, x, x[None])) == 0


def test_twins_of_other_blocks_become_alike(roomy: ToyProblem, x: np.ndarray) -> None:
    """Operators 0, 1 of one block have the names of 2, 3 of another; 4 to 6 have no twins."""
    twin = ToyProblem(num_gpus=12, num_ops=7)
    twin.weight = roomy.weight
    degrees = twin.component_names[:NUM_DEGREES]
    twin.component_names = (*degrees, "a/p", "a/q", "b/p", "b/q", "b/r", "b/s", "b/t")
    y = x.copy()
    y[NUM_DEGREES:] = (0, 1, 2, 2, 0, 0, 0)
    found = {tuple(row) for row in twin_edits(twin, y)[:, NUM_DEGREES:].tolist()}
    # p and q alike at 0, 1 or 2 (p at 2 is new in `a` alone); both at once; one block as the other.
    assert (0, 1, 0, 1, 0, 0, 0) in found and (2, 2, 2, 2, 0, 0, 0) in found
    assert (1, 1, 1, 2, 0, 0, 0) in found and all(row[4:] == (0, 0, 0) for row in found)
    assert len(twin_edits(roomy, x)) == 0


def test_what_fits_only_after_a_choice_moved_is_tried_with_it() -> None:
    problem = ToyProblem(num_gpus=12, num_ops=4, weight=np.array([0.4, 0.3, 0.3, 0.2]))
    # group 12, pp 1, tp 2, ep 1, batch 8: the cache holds 0.05 * 8 / 12 = 0.033.
    x = np.array([5, 0, 1, 0, 3, 2, 0, 0, 0])
    # 0.033 + 0.4 + 0.15 + 0.15 + 0.1 = 0.833 of 1; with the first operator split 0.633. Replicating operators 1, 2, 3
    # takes 0.15, 0.15 and 0.1 more, so any two of them fit only after that, and all three never.
    assert problem.legal(x[None]).all()
    moved = x.copy()
    moved[5] = 0
    rows = freed_edits(problem, x, moved[None], split_runs(problem))
    # Runs leave the first and the last two alike: 1 and 2 with 3 split either way, or 2 and 3 with 1 split either way.
    assert {tuple(row) for row in rows[:, 5:].tolist()} == {(0, 2, 2, 0), (0, 2, 2, 1), (0, 0, 2, 2), (0, 1, 2, 2)}
    assert (rows[:, :5] == x[:5]).all()
    assert len(freed_edits(problem, x, x[None][:0], split_runs(problem))) == 0


class Turned(ToyProblem):
    """A layout of the model that pays only once eight choices follow it; they follow one after the other."""

    FOLLOWED = np.array([1, 2] * 4)

    def __init__(self) -> None:
        super().__init__(num_gpus=1, num_ops=9, weight=np.full(9, 1e-6))
        self.component_names = (
            *self.component_names[:NUM_DEGREES],
            "model/residual",
            *(f"block/{i}" for i in range(8)),
        )

    def score(self, x: np.ndarray) -> Scores:
        layout, choices = x[:, NUM_DEGREES], x[:, NUM_DEGREES + 1 :]
        followed = (choices == self.FOLLOWED).sum(1)
        straight = 100.0 - 5.0 * (choices != 0).sum(1)
        value = np.where(layout == 0, straight, np.where(layout == 1, 96.0 + followed, 1.0))
        return Scores(value, np.zeros(len(x)))


@pytest.mark.parametrize(("held", "expected"), [(0.05, 104.0), (0.0, 100.0)])
def test_a_changed_layout_is_held_until_the_choices_have_followed(held: float, expected: float) -> None:
    problem = Turned()
    recorder, memory = Recorder(problem), Memory(history=3, pool=20, pool_key_components=3)
    x = np.array([[0, 0, 0, 0, 0, *[0] * 9]])
    memory.update(x, recorder.evaluate(x))
    Climber(problem, recorder, memory, ClimbConfig(held=held)).run(lambda: None)
    # 96 with the layout alone, 1 more for each of the eight that follow: 104 in the end, 100 without holding it.
    assert recorder.throughput == expected
