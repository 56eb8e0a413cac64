"""Climbs from good strategies by every move of `sweeps.py`: what a search ends with.

A climb takes the best of the first kind of moves that has a better strategy, or several of its better ones at once,
and goes on from there. From the best strategy all kinds but the two with the most moves are tried, from the others of
the pool those of the choices: so each of the degrees in the pool gets choices of its own before calls go to the rest.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from autoshard.search.elites import Memory, fitness
from autoshard.search.protocol import FloatArray, IntArray, Problem
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

CHOICES, DEGREES, ALL = range(3)
"""Which kinds of moves a step tries: those of the choices, those of the degrees too, those with many moves too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClimbConfig:
    """How far a climb looks."""

    donors: int = 6
    """Strategies of the pool whose runs of choices are tried. [chosen]"""
    crossed: int = 3
    """Strategies of the pool whose choices are tried with all moves of the degrees. [chosen]"""
    opened: int = 20
    """Moves of the degrees after which the choices that they open are tried. [chosen]"""
    freed: float = 0.01
    """Loss (of the log throughput) up to which a choice is moved to try what fits only then. [chosen]"""
    held: float = 0.02
    """Loss up to which a choice of the whole model is moved and held while the others follow. [chosen]"""


class Climber:
    """Climbs of one run of a search, from and into its memory."""

    def __init__(self, problem: Problem, recorder: Recorder, memory: Memory, config: ClimbConfig) -> None:
        self.problem, self.recorder, self.memory, self.config = problem, recorder, memory, config
        self._runs = split_runs(problem)

    def run(self, otherwise: Callable[[], None]) -> None:
        """Spend the calls left; where no move from the pool is left, on what ``otherwise`` evaluates."""
        climbed: set[bytes] = set()
        while self.recorder.calls_left:
            pool = self.memory.pool.strategies
            x: IntArray | None = next((row for row in pool if row.tobytes() not in climbed), None)
            if x is None:
                calls = self.recorder.calls
                if all(self._step(row, ALL) is None for row in pool):
                    otherwise()
                if self.recorder.calls == calls:
                    return
            while x is not None and self.recorder.calls_left:
                climbed.add(x.tobytes())
                best = x.tolist() == list(self.recorder.best or ())
                better = self._step(x, DEGREES if best else CHOICES)
                x = self._held(x) if better is None and best else better

    def _held(self, x: IntArray) -> IntArray | None:
        """A better strategy with a choice of the whole model, such as the residual's layout, at another option.

        The others follow it one after the other, so on the way there all are worse: the choice is held meanwhile.
        """
        problem = self.problem
        wide = [c for c, name in enumerate(problem.component_names) if name.startswith("model/")]
        moved = single_edits(problem, x, wide)
        loss = fitness(self.recorder.evaluate(x[None])) - self._evaluate(moved)
        for row in np.argsort(loss, kind="stable")[: int((loss < self.config.held).sum())]:
            y: IntArray = moved[row]
            held = np.flatnonzero((y != x) & np.isin(np.arange(len(x)), wide))
            z: IntArray | None = y
            while z is not None:
                y, z = z, self._step(z, CHOICES, held)
            if self.recorder.best == tuple(y.tolist()):
                return y
        return None

    def _step(self, x: IntArray, effort: int, held: IntArray | None = None) -> IntArray | None:
        """A better strategy that moves from ``x`` lead to; None if there is none."""
        problem, donors, opening, near = self.problem, self._donors(), x[None][:0], x[None][:0]
        kinds: list[tuple[int, Callable[[], IntArray]]] = [
            (CHOICES, lambda: single_edits(problem, x)),
            (CHOICES, lambda: twin_edits(problem, x)),
            (CHOICES, lambda: run_edits(problem, x, donors)),
            (DEGREES, lambda: degree_moves(problem, x)),
            (DEGREES, lambda: opened_edits(problem, x, opening)),
            (DEGREES, lambda: freed_edits(problem, x, near, self._runs)),
            (ALL, lambda: pair_edits(problem, x)),
            (ALL, lambda: crossed_moves(problem, x, donors[: self.config.crossed])),
        ]
        value = fitness(self.recorder.evaluate(x[None]))
        for kind, moves in kinds:
            if kind > effort:
                break
            y = moves()
            if held is not None:
                y = y[(y[:, held] == x[held]).all(1)]
            gain = self._evaluate(y) - value
            better = np.argsort(-gain, kind="stable")[: int((gain > 0).sum())]
            if len(better):
                return self._best_of(x, y[better])
            if not len(near):
                near = self._near(x, y[: len(gain)], gain)
            if kind == DEGREES and not len(opening):
                opening = self._one_of_each(y[np.argsort(-gain, kind="stable")])[: self.config.opened]
        return None

    def _near(self, x: IntArray, y: IntArray, gain: FloatArray) -> IntArray:
        """Of [n, C] moves from ``x`` those of one choice that lose next to nothing."""
        first = self.problem.num_degree_components
        alone = ((y != x).sum(1) == 1) & (y[:, :first] == x[:first]).all(1)
        near: IntArray = y[alone & (gain > -self.config.freed)]
        return near

    def _best_of(self, x: IntArray, better: IntArray) -> IntArray:
        """All of [n, C] better strategies at once where that is better still, otherwise the first, the best."""
        if len(better) > 1:
            both = combined(self.problem, x, better)
            value = self._evaluate(both)
            if len(value) and value[0] > fitness(self.recorder.evaluate(better[:1]))[0]:
                together: IntArray = both[0]
                return together
        best: IntArray = better[0]
        return best

    def _evaluate(self, y: IntArray) -> FloatArray:
        """Fitness of [n, C] strategies, learned; of fewer where the budget ends."""
        scores = self.recorder.evaluate(y)
        self.memory.update(y, scores)
        return fitness(scores)

    def _donors(self) -> IntArray:
        """Strategies of the pool with different choices."""
        pool = self.memory.pool.strategies
        choices = pool[:, self.problem.num_degree_components :]
        donors: IntArray = pool[np.sort(np.unique(choices, axis=0, return_index=True)[1])][: self.config.donors]
        return donors

    def _one_of_each(self, y: IntArray) -> IntArray:
        """Of [n, C] strategies the first with each degrees, whatever its batch."""
        batch = self.problem.num_degree_components - 1
        found: IntArray = y[np.sort(np.unique(y[:, :batch], axis=0, return_index=True)[1])]
        return found
