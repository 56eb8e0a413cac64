"""What a search returns, and the recorder that every algorithm evaluates through.

The recorder remembers each strategy it has scored, so asking twice costs one call, and keeps the best ever seen. The
problem does the counting; the recorder only says at which call each improvement came.
"""

from dataclasses import dataclass

import numpy as np

from autoshard.search.protocol import IntArray, Problem, Scores

Strategy = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """The best strategy of one run and how it was reached.

    Attributes:
        algorithm: Name of the search.
        seed: Its seed.
        best: Option indices of the best feasible strategy, None if none was feasible.
        throughput: Its tokens/s/GPU, 0 if none was feasible.
        calls: Strategies this run evaluated.
        history: (calls, best so far) at each improvement and at the end of the run.
        found_at_call: The call, from 1, that returned `best`; 0 if there is none.
        note: What a reader of the numbers must know, such as a cut-off enumeration; empty if nothing.
    """

    algorithm: str
    seed: int
    best: Strategy | None
    throughput: float
    calls: int
    history: tuple[tuple[int, float], ...]
    found_at_call: int
    note: str = ""


class Recorder:
    """Evaluates strategies of a problem once each and remembers the best."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._first_call = problem.calls
        self._scores: dict[bytes, tuple[float, float]] = {}
        self._history: list[tuple[int, float]] = []
        self.best: Strategy | None = None
        self.throughput = 0.0

    @property
    def calls(self) -> int:
        """Calls used by this run."""
        return self._problem.calls - self._first_call

    @property
    def calls_left(self) -> int:
        """Calls that the problem's budget still allows."""
        return max(0, self._problem.budget - self._problem.calls)

    def seen(self, x: IntArray) -> list[bool]:
        """Whether each of [n, C] strategies has been scored before."""
        return [row.tobytes() in self._scores for row in x]

    def evaluate(self, x: IntArray) -> Scores:
        """Scores of [n, C] strategies; only those not seen before are evaluated.

        Where the budget ends before all are scored, the scores of the strategies before the first unscored one.
        """
        keys = [row.tobytes() for row in x]
        first_rows = {key: row for row, key in reversed(list(enumerate(keys))) if key not in self._scores}
        rows = sorted(first_rows.values())[: self.calls_left]
        if rows:
            self._evaluate_new(x[rows], [keys[row] for row in rows])
        known: list[tuple[float, float]] = []
        for key in keys:
            if key not in self._scores:
                break
            known.append(self._scores[key])
        table = np.array(known, dtype=np.float64).reshape(-1, 2)
        return Scores(throughput=table[:, 0].copy(), violation=table[:, 1].copy())

    def _evaluate_new(self, x: IntArray, keys: list[bytes]) -> None:
        before = self.calls
        scores = self._problem.evaluate(x)
        pairs = zip(keys, scores.throughput.tolist(), scores.violation.tolist(), strict=False)
        for row, (key, throughput, violation) in enumerate(pairs):
            self._scores[key] = (throughput, violation)
            if throughput > self.throughput:
                self.best, self.throughput = tuple(x[row].tolist()), throughput
                self._history.append((before + row + 1, throughput))

    def result(self, algorithm: str, seed: int, note: str = "") -> SearchResult:
        """The outcome so far."""
        end = (self.calls, self.throughput)
        found_at_call = self._history[-1][0] if self._history else 0
        history = self._history if end in self._history else [*self._history, end]
        return SearchResult(
            algorithm=algorithm,
            seed=seed,
            best=self.best,
            throughput=self.throughput,
            calls=self.calls,
            history=tuple(history),
            found_at_call=found_at_call,
            note=note,
        )
