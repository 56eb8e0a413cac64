"""All strategies one move away from a good one: chance alone would take long to try every one of them.

Four kinds of moves: one component takes another option; two neighbouring choices change together (a layout between two
operators costs unless both follow it); a run of choices becomes that of another good strategy, or all one option; the
degrees move together, each by a size or one of them to any, and the batch stays, or becomes the largest or the second
largest that fits. All are made legal by projection, and none costs a call. Moves that are each better may be made at
once.
"""

import itertools

import numpy as np

from autoshard.search.proposals import project
from autoshard.search.protocol import IntArray, Problem

LONGEST_RUN = 6
"""Choices replaced together at most: those of an FFN, or of an attention with its projections. [chosen]"""


def single_edits(problem: Problem, x: IntArray) -> IntArray:
    """[n, C] legal strategies with one component of a [C] strategy at another option."""
    return _legal(problem, x, [_edited(x, {c: o}) for c in range(len(x)) for o in range(problem.num_options[c])])


def pair_edits(problem: Problem, x: IntArray) -> IntArray:
    """[n, C] legal strategies with two choices, next to or next but one to each other, at other options."""
    found = []
    for first in range(problem.num_degree_components, len(x)):
        for second in range(first + 1, min(first + 3, len(x))):
            options = itertools.product(range(problem.num_options[first]), range(problem.num_options[second]))
            found += [_edited(x, {first: a, second: b}) for a, b in options if a != x[first] and b != x[second]]
    return _legal(problem, x, found)


def run_edits(problem: Problem, x: IntArray, donors: IntArray) -> IntArray:
    """[n, C] legal strategies with two to six successive choices of one of [k, C] others, or with the same option."""
    found = []
    same = np.repeat(np.arange(problem.num_options[problem.num_degree_components :].max())[:, None], len(x), 1)
    for donor in (*donors, *np.minimum(same, problem.num_options - 1)):
        for first in range(problem.num_degree_components, len(x)):
            for last in range(first + 2, min(first + LONGEST_RUN, len(x)) + 1):
                if donor[first] != x[first] and donor[last - 1] != x[last - 1]:
                    found.append(np.concatenate([x[:first], donor[first:last], x[last:]]))
    return _legal(problem, x, found)


def combined(problem: Problem, x: IntArray, moved: IntArray) -> IntArray:
    """[1, C] all of [n, C] moves from ``x`` at once, best first, each unless it touches what one before it has."""
    y = x.copy()
    for row in moved:
        changed = row != x
        if (y[changed] == x[changed]).all():
            y[changed] = row[changed]
    return project(problem, y[None])


def degree_moves(problem: Problem, x: IntArray) -> IntArray:
    """[n, C] legal strategies with the degrees moved together and the last of them, the batch, adapted."""
    batch = problem.num_degree_components - 1
    steps = itertools.product((-1, 0, 1), repeat=batch)
    found = [_edited(x, {c: int(x[c]) + by for c, by in enumerate(step)}) for step in steps]
    found += [_edited(x, {c: o}) for c in range(batch) for o in range(problem.num_options[c])]
    moved = np.array(found)
    largest = moved.copy()
    largest[:, batch] = problem.num_options[batch] - 1
    largest = project(problem, largest)
    smaller = largest.copy()
    smaller[:, batch] -= 1
    return _legal(problem, x, [*moved, *largest, *smaller])


def _edited(x: IntArray, options: dict[int, int]) -> IntArray:
    y = x.copy()
    y[list(options)] = list(options.values())
    return y


def _legal(problem: Problem, x: IntArray, rows: list[IntArray]) -> IntArray:
    """Distinct projections of rows, in their order, without ``x`` itself."""
    if not rows:
        return x[None][:0]
    y = project(problem, np.array(rows))
    y = y[(y != x).any(1)]
    _, first = np.unique(y, axis=0, return_index=True)
    found: IntArray = y[np.sort(first)]
    return found
