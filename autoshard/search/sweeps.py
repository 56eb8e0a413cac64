"""All strategies one move away from a good one: chance alone would take long to try every one of them.

Four kinds of moves: one component takes another option; two neighbouring choices change together (a layout between two
operators costs unless both follow it); a run of choices becomes that of another good strategy, or all one option; the
degrees move together, each by a size or one of them to any, and the batch stays, or becomes the largest or the second
largest that fits. All are made legal by projection, and none costs a call. Moves that are each better may be made at
once.
"""

import itertools
from collections.abc import Iterable

import numpy as np

from autoshard.search.proposals import project
from autoshard.search.protocol import IntArray, Problem

LONGEST_RUN = 6
"""Choices replaced together at most: those of an FFN, or of an attention with its projections. [chosen]"""

LONGEST_SPLIT = 4
"""Choices of which the first become one option and the others another: those of an FFN. [chosen]"""
MOST_TOGETHER = 30
"""Combinations of opened choices that are tried at most: those of three. [chosen]"""


def single_edits(problem: Problem, x: IntArray, components: Iterable[int] | None = None) -> IntArray:
    """[n, C] legal strategies with one component (of some, by default of all) of a [C] strategy at another option."""
    some = range(len(x)) if components is None else components
    return _legal(problem, x, [_edited(x, {c: o}) for c in some for o in range(problem.num_options[c])])


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


def split_runs(problem: Problem) -> IntArray:
    """[r, C] options of two to four successive choices of a block, the first alike and the others too; -1 elsewhere."""
    blocks, last_option = [name.rpartition("/")[0] for name in problem.component_names], problem.num_options - 1
    first, num = problem.num_degree_components, len(problem.num_options)
    options = range(int(problem.num_options[first:].max()))
    found = []
    for start, length in itertools.product(range(first, num), range(2, LONGEST_SPLIT + 1)):
        stop = start + length
        if stop <= num and blocks[start] == blocks[stop - 1]:
            for middle, a, b in itertools.product(range(start + 1, stop), options, options):
                run = np.full(num, -1)
                run[start:middle], run[middle:stop] = a, b
                found.append(np.minimum(run, last_option))
    return np.unique(np.array(found).reshape(-1, num), axis=0)


def freed_edits(problem: Problem, x: IntArray, moved: IntArray, runs: IntArray) -> IntArray:
    """[n, C] strategies ``moved`` by one choice from ``x`` [k, C] with one of some runs that is illegal without that.

    The move is mostly one that takes less memory, so that choices fit which take more. ``runs`` is from `split_runs`.
    """
    apart = ~((runs >= 0) & (moved != x)[:, None]).any(2)
    which, run = np.nonzero(apart)
    if not len(which):
        return x[None][:0]
    y = np.where(runs[run] >= 0, runs[run], moved[which])
    without = np.where(runs[run] >= 0, runs[run], x)
    return _distinct(y[problem.legal(y) & ~problem.legal(without)])


def twin_edits(problem: Problem, x: IntArray) -> IntArray:
    """[n, C] legal strategies with one to six successive choices, and those of the same name in other blocks, alike.

    They become one option, or the other blocks take over those of this one. Nothing where every name is the only one.
    """
    names = [name.rpartition("/")[2] for name in problem.component_names]
    twins = {c: [o for o, name in enumerate(names) if name == names[c]] for c in range(len(x))}
    found = []
    for first in range(problem.num_degree_components, len(x)):
        for last in range(first + 1, min(first + LONGEST_RUN, len(x)) + 1):
            if len(twins[last - 1]) == 1:
                break
            run = range(first, last)
            found.append(_edited(x, {o: int(x[c]) for c in run for o in twins[c]}))
            for option in range(int(problem.num_options[first:last].max())):
                found.append(
                    _edited(x, {o: min(option, int(problem.num_options[o]) - 1) for c in run for o in twins[c]})
                )
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


def crossed_moves(problem: Problem, x: IntArray, donors: IntArray) -> IntArray:
    """[n, C] `degree_moves` from ``x`` with the choices of each of [k, C] others."""
    first = problem.num_degree_components
    crossed = [np.concatenate([x[:first], donor[first:]]) for donor in donors if (donor[first:] != x[first:]).any()]
    found = [degree_moves(problem, y) for y in crossed]
    return _legal(problem, x, list(np.concatenate(found))) if found else x[None][:0]


def opened_edits(problem: Problem, x: IntArray, moved: IntArray) -> IntArray:
    """[n, C] legal strategies with the choices that the degrees of [k, C] ``moved`` open at every other option.

    A choice is opened where its rules allow more options than at the degrees of ``x``. Neighbours among them are tried
    together as long as there are few combinations, otherwise each alone.
    """
    before = _num_allowed(problem, x)
    found = []
    for y in moved:
        opened = np.flatnonzero(_num_allowed(problem, y) > before)
        for run in np.split(opened, np.flatnonzero(np.diff(opened) > 1) + 1):
            parts = [run] if len(run) and np.prod(problem.num_options[run]) <= MOST_TOGETHER else run[:, None]
            for part in parts:
                for options in itertools.product(*(range(problem.num_options[c]) for c in part)):
                    found.append(_edited(y, dict(zip(part.tolist(), options, strict=True))))
    return _legal(problem, x, found)


def _num_allowed(problem: Problem, x: IntArray) -> IntArray:
    """[C] how many options of every component the rules allow at the degrees of ``x``."""
    most, first = int(problem.num_options.max()), problem.num_degree_components
    rows = np.repeat(x[None], most, 0)
    rows[:, first:] = np.minimum(np.arange(most)[:, None], problem.num_options[first:] - 1)
    kept = (problem.with_legal_choices(rows) == rows) & (np.arange(most)[:, None] < problem.num_options)
    found: IntArray = kept.sum(0)
    return found


def _edited(x: IntArray, options: dict[int, int]) -> IntArray:
    y = x.copy()
    y[list(options)] = list(options.values())
    return y


def _legal(problem: Problem, x: IntArray, rows: list[IntArray]) -> IntArray:
    """Distinct projections of rows, in their order, without ``x`` itself."""
    if not rows:
        return x[None][:0]
    y = project(problem, np.array(rows))
    return _distinct(y[(y != x).any(1)])


def _distinct(y: IntArray) -> IntArray:
    """Each row once, where it first comes."""
    _, first = np.unique(y, axis=0, return_index=True)
    found: IntArray = y[np.sort(first)]
    return found
