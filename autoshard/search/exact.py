"""The exact optimum of the whole space, with proof: every degree point, every choice, under memory and limits.

Per degree point and assignment of the shared choices (the residual's layout, tied weights), every factor at its own
least gives a ceiling, and points are opened best ceiling first until none is above the best found, or above the k-th
best where k are asked for. There each part's fastest choices follow from elimination (`autoshard.search.eliminate`),
and the throughput they give is an upper bound. Where they fit in memory the bound is reached. The other points are
opened again best bound first, with (seconds, bytes) labels (`autoshard.search.labels`), to the same end.
Choices are tied over the repeats of a block.

Exact for one phase: throughput falls with the step's time alone, so the fastest choices that fit are the best of a
point, and a limit on the step is met by them if by any. Mixed serving limits TPOT and TTFT besides the objective:
points where either alone cannot be met are dropped with proof, but where the fastest choices break a limit and others
keep it, the throughput of the fastest is only a bound. ``bound`` is then above ``tokens_per_s``; where they are equal
the optimum is proven.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autoshard.search.eliminate import Table, minimise, restrict
from autoshard.search.labels import fronts
from autoshard.simulator.measures import Measure
from autoshard.simulator.simulator import Simulator
from autoshard.simulator.variables import ILLEGAL_S, Component, Factor

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
MOST_LABELS = 64
"""Points opened with labels under mixed serving, where a bound may stay open whatever is opened."""

FIRST_GROUP, LARGEST_GROUP = 256, 8192
"""Points whose choices are settled together: the first ones, and at most, which bounds memory."""
ROUNDING = 1e-9
"""Relative room for sums that are taken in another order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactResult:
    """The optimum: its point and options (None when nothing is feasible), throughput in tokens/s of the cluster.

    ``bound`` is what no strategy exceeds: ``tokens_per_s`` where that is proven. ``values`` is the best throughput of
    every point that was settled; what is found of the others is a lower bound, 0 where they were not opened.
    ``best_points`` are the points asked for, proven, best first. ``points_opened`` counts those that needed labels.
    """

    point: int | None
    dims: tuple[int, ...] | None
    tokens_per_s: float
    bound: float
    values: FloatArray
    dims_of: Mapping[int, tuple[int, ...]]
    best_points: tuple[int, ...]
    points_opened: int

    @property
    def is_bound(self) -> bool:
        """Whether ``bound`` is one that nothing found reaches."""
        return self.bound > self.tokens_per_s * (1 + 1e-12)


class ExactSearch:
    """Exact optimisation over the tables of a simulator."""

    def __init__(self, simulator: Simulator) -> None:
        self.sim = simulator
        self.sizes = {i: len(v.choices) for i, v in enumerate(simulator.variables)}
        seen = [v for part in simulator.parts for v in part.variables()]
        self.shared = tuple(sorted({v for v in seen if seen.count(v) > 1} | {0}))

    def run(self, num_best: int = 1, kinds: IntArray | None = None, *, everywhere: bool = False) -> ExactResult:
        """Find the optimum, and the best points of the ``num_best`` best kinds.

        Args:
            num_best: Kinds to settle; fewer where fewer are feasible.
            kinds: The kind of every point ``[points]``, from 0 (for instance its degrees whatever the batch), of which
                the best point stands for all; by default each point is one.
            everywhere: Also find the fastest choices of points that cannot be among the best.
        """
        sim = self.sim
        n = len(sim.points)
        kinds = np.arange(n) if kinds is None else kinds
        values, best_dims = np.zeros(n), np.zeros((n, len(self.sizes)), dtype=np.int64)
        best = np.zeros(int(kinds.max(initial=0)) + 1)
        open_cells: list[tuple[float, int, tuple[int, ...]]] = []
        unsettled = 0.0
        ceilings = self.ceilings()
        for cell, index in self._best_first(ceilings, lambda: 0.0 if everywhere else _largest(best, num_best)):
            if not everywhere:
                index = index[ceilings[cell][index] > best[kinds[index]]]
            held = dict(zip(self.shared, cell, strict=True))
            bound, reached, dims, fits = self._bounds(held, index)
            unsettled = max(unsettled, float(bound[fits & (reached < bound)].max(initial=0.0)))
            better = reached > values[index]
            values[index[better]], best_dims[index[better]] = reached[better], dims[better]
            np.maximum.at(best, kinds[index], reached)
            open_cells += [(float(bound[i]), int(index[i]), cell) for i in np.flatnonzero(~fits & (bound > 0))]
        enough = _largest(best, num_best)
        opened = 0
        for bound_value, i, cell in sorted(open_cells, key=lambda c: (-c[0], c[1], c[2])):
            if bound_value <= enough:
                break
            if bound_value <= best[kinds[i]]:
                continue
            if sim.limits and opened >= MOST_LABELS:
                unsettled = max(unsettled, bound_value)
                break
            opened += 1
            found = self._with_labels(i, dict(zip(self.shared, cell, strict=True)))
            if found is None:
                continue
            unsettled = max(unsettled, found[0])
            if found[1] > values[i]:
                values[i], best_dims[i] = found[1], found[2]
                best[kinds[i]] = max(best[kinds[i]], found[1])
                enough = _largest(best, num_best)
        known = {int(i): tuple(int(o) for o in best_dims[i]) for i in np.flatnonzero(values)}
        order = [int(i) for i in np.argsort(-values, kind="stable")[: len(known)]]
        firsts = {int(kinds[i]): i for i in reversed(order)}
        best_points = tuple(i for i in order if firsts[int(kinds[i])] == i)[:num_best]
        top = order[0] if order else None
        return ExactResult(
            point=top,
            dims=None if top is None else known[top],
            tokens_per_s=float(values.max(initial=0.0)),
            bound=max(unsettled, float(values.max(initial=0.0))),
            values=values,
            dims_of=known,
            best_points=best_points,
            points_opened=opened,
        )

    def best_at(self, point: int, fixed: Mapping[int, int] | None = None) -> tuple[float, tuple[int, ...]] | None:
        """Best throughput (tokens/s) at a degree point and its options, some variables held; None if infeasible."""
        best: tuple[float, tuple[int, ...]] | None = None
        for held in self.cells(fixed or {}):
            bound, reached, dims, fits = self._bounds(held, np.array([point]))
            if bound[0] <= (best[0] if best else 0.0):
                continue
            value, options = float(reached[0]), dims[0]
            if not fits[0]:
                found = self._with_labels(point, held)
                if found is not None and found[1] > value:
                    value, options = found[1], found[2]
            if value > (best[0] if best else 0.0):
                best = (value, tuple(int(o) for o in options))
        return best

    def bounds_at(self, index: IntArray) -> FloatArray:
        """What no strategy exceeds at some points, memory aside: tokens/s, 0 where nothing is legal or fast enough."""
        best = np.zeros(len(index))
        for held in self.cells({}):
            best = np.maximum(best, self._bounds(held, index)[0])
        return best

    def option_values(self, point: int) -> tuple[tuple[float | None, ...], ...]:
        """Best throughput (tokens/s) at a degree point with each option of each variable held, the others free.

        None where the option is illegal there, or nothing with it fits or meets the limit.
        """
        found = []
        for v, size in self.sizes.items():
            best = [self.best_at(point, {v: option}) for option in range(size)]
            found.append(tuple(None if b is None else b[0] for b in best))
        return tuple(found)

    def cells(self, fixed: Mapping[int, int]) -> Iterator[dict[int, int]]:
        """Every assignment of the shared variables that agrees with ``fixed``, and all of ``fixed``."""
        for cell in itertools.product(*([fixed[v]] if v in fixed else range(self.sizes[v]) for v in self.shared)):
            yield {**fixed, **dict(zip(self.shared, cell, strict=True))}

    def ceilings(self) -> dict[tuple[int, ...], FloatArray]:
        """What no strategy exceeds, per assignment of the shared variables and point: tokens/s.

        Every factor at its own least, whatever the choices: cheap, and enough to leave most points aside.
        """
        sim, everything = self.sim, np.arange(len(self.sim.points))
        found = {}
        for held in self.cells({}):
            part_s = np.stack([self._least_s(part, held) for part in sim.objective.parts], 1)
            step_s = sim.step_s(everything, part_s, held[0])
            legal = step_s < ILLEGAL_S
            for v, option in held.items():
                legal &= sim.variables[v].legal[:, option]
            if sim.limit_s is not None:
                legal &= step_s <= sim.limit_s
            ceiling = sim.throughput(everything, step_s) * (1.0 + ROUNDING)
            found[tuple(held[v] for v in self.shared)] = np.where(legal, ceiling, 0.0)
        return found

    def _least_s(self, part: Component, held: Mapping[int, int]) -> FloatArray:
        """Sum of the least seconds of every factor of a part at every point."""
        own: dict[int, FloatArray] = {}
        total = np.zeros(len(self.sim.points))
        for factor in part.factors:
            table = restrict(_table(factor), held)
            if len(factor.variables) == 1 and table.variables:
                (v,) = table.variables
                columns = table.values[:, list(table.classes[0])]
                own[v] = own[v] + columns if v in own else columns
            else:
                total += table.values.min(axis=tuple(range(1, table.values.ndim)))
        for v, seconds in own.items():
            total += np.where(self.sim.variables[v].legal, seconds, ILLEGAL_S).min(1)
        return total

    def _best_first(
        self, ceilings: Mapping[tuple[int, ...], FloatArray], enough: Callable[[], float]
    ) -> Iterator[tuple[tuple[int, ...], IntArray]]:
        """Points with their assignment of the shared variables, best ceiling first, until none is above ``enough()``.

        They come in groups that grow, so that the first good ones save most of the others.
        """
        cells, n = list(ceilings), len(self.sim.points)
        ceiling = np.concatenate([ceilings[cell] for cell in cells])
        order = np.argsort(-ceiling, kind="stable")
        start, size = 0, FIRST_GROUP
        while start < len(order) and ceiling[order[start]] > enough():
            group = order[start : start + size]
            group = group[ceiling[group] > enough()]
            for number in np.unique(group // n):
                yield cells[number], group[group // n == number] % n
            start, size = start + size, min(2 * size, LARGEST_GROUP)

    def _bounds(self, held: Mapping[int, int], index: IntArray) -> tuple[FloatArray, FloatArray, IntArray, BoolArray]:
        """Bounds of points, the shared variables (and perhaps others) being held.

        Returns of every point its bound (0 where illegal or over a limit), the throughput that the options returned
        reach (0 where they do not fit or break a limit), those options, and whether the fastest fit.
        """
        sim = self.sim
        part_s, dims = self.fastest(sim.objective, held, index)
        step_s = sim.step_s(index, part_s, held[0])
        legal = step_s < ILLEGAL_S
        for v, option in held.items():
            legal &= sim.variables[v].legal[index, option]
        if sim.limit_s is not None:
            legal &= step_s <= sim.limit_s
        fits = self._total_bytes(index, dims) <= sim.capacity_bytes
        reached = np.where(legal & fits & self._within(index, dims), sim.throughput(index, step_s), 0.0)
        for measure in sim.limits:
            assert measure.limit_s is not None
            part_s, others = self.fastest(measure, held, index)
            legal &= sim.stages_s(measure, index, part_s, held[0]) <= measure.limit_s
            ok = legal & (self._total_bytes(index, others) <= sim.capacity_bytes) & self._within(index, others)
            value = np.where(ok, sim.throughput(index, sim.measure_s(sim.objective, index, others)), 0.0)
            better = value > reached
            reached, dims = np.where(better, value, reached), np.where(better[:, None], others, dims)
        return np.where(legal, sim.throughput(index, step_s), 0.0), np.where(legal, reached, 0.0), dims, fits

    def _within(self, index: IntArray, dims: IntArray) -> BoolArray:
        """Whether options keep the limits besides the step's."""
        found = np.ones(len(index), dtype=bool)
        for measure in self.sim.limits:
            assert measure.limit_s is not None
            found &= self.sim.measure_s(measure, index, dims) <= measure.limit_s
        return found

    def fastest_step(self, measure: Measure | None = None) -> tuple[float, int] | None:
        """Least step, or other measure (seconds), of any strategy that fits, and its point; None if nothing fits.

        Limits are left aside.
        """
        sim = self.sim
        measure = measure or sim.objective
        best: tuple[float, int] | None = None
        for start in range(0, len(sim.points), LARGEST_GROUP):
            index = np.arange(start, min(start + LARGEST_GROUP, len(sim.points)))
            for held in self.cells({}):
                part_s, dims = self.fastest(measure, held, index)
                step_s = sim.stages_s(measure, index, part_s, held[0])
                ok = (step_s < ILLEGAL_S) & (self._total_bytes(index, dims) <= sim.capacity_bytes)
                for v, option in held.items():
                    ok &= sim.variables[v].legal[index, option]
                if ok.any():
                    i = int(np.where(ok, step_s, np.inf).argmin())
                    if best is None or step_s[i] < best[0]:
                        best = (float(step_s[i]), int(index[i]))
        return best

    def _tables(self, part: Component, fixed: Mapping[int, int], index: IntArray) -> list[Table]:
        """Factors of a part at some points under fixed options, illegal options priced out."""
        tables = [restrict(_table(f, index), fixed) for f in part.factors]
        for v in part.variables():
            if v not in fixed:
                legal = self.sim.variables[v].legal[index]
                tables.append(Table.of_options((v,), np.where(legal, 0.0, ILLEGAL_S)))
        return tables

    def fastest(self, measure: Measure, fixed: Mapping[int, int], index: IntArray) -> tuple[FloatArray, IntArray]:
        """Least seconds of every part [points, parts] and the options that reach them [points, variables]."""
        dims = np.zeros((len(index), len(self.sizes)), dtype=np.int64)
        for v, option in fixed.items():
            dims[:, v] = option
        seconds = []
        for part in measure.parts:
            least, options = minimise(self._tables(part, fixed, index), self.sizes)
            seconds.append(least)
            for v, chosen in options.items():
                dims[:, v] = chosen
        return np.stack(seconds, 1), dims

    def _total_bytes(self, index: IntArray, dims: IntArray) -> FloatArray:
        held = np.stack([sum(c.num_bytes(index, dims)) for c in self.sim.parts], 1)
        return self.sim.held_bytes(index, held) + self.sim.fixed_bytes(index)

    def _with_labels(self, i: int, fixed: Mapping[int, int]) -> tuple[float, float, IntArray] | None:
        """Of point ``i`` under memory: a bound on its throughput, the best found within limits and its options.

        None if nothing fits. Without limits besides the step's, the best is the bound.
        """
        sim, index = self.sim, np.array([i])
        profiles = sim.profiles_of(index)[0]
        room = sim.capacity_bytes - float(sim.fixed_bytes(index)[0])
        stage_s, stage_bytes = np.zeros((1, len(profiles))), np.zeros((1, len(profiles)))
        options = np.full((1, len(self.sizes)), -1, dtype=np.int64)
        for v, option in fixed.items():
            options[0, v] = option
        for j, part in enumerate(sim.parts):
            held: dict[int, FloatArray] = {v: np.zeros(self.sizes[v]) for v in part.variables()}
            for v, table in (*part.weights, *part.kv):
                held[v] = held[v] + table[i]
            always = sum(float(held[v][fixed[v]]) for v in held if v in fixed)
            front = fronts(self._tables(part, fixed, index), held, self.sizes, len(self.sizes), ILLEGAL_S)
            if not len(front.seconds):
                return None
            a = np.repeat(np.arange(len(stage_s)), len(front.seconds))
            b = np.tile(np.arange(len(front.seconds)), len(stage_s))
            stage_s = stage_s[a] + front.seconds[b, None] * profiles[:, j]
            stage_bytes = stage_bytes[a] + (front.num_bytes[b, None] + always) * profiles[:, j]
            options = np.maximum(options[a], front.options[b])
            keep = _undominated(stage_s, stage_bytes, room)
            stage_s, stage_bytes, options = stage_s[keep], stage_bytes[keep], options[keep]
            if not len(stage_s):
                return None
        step_s = sim.points.pp[i] * (stage_s.max(1) + sim.send_s[i, fixed[0]])
        order = np.argsort(step_s, kind="stable")
        k = int(order[0])
        if step_s[k] >= ILLEGAL_S or (sim.limit_s is not None and step_s[k] > sim.limit_s):
            return None
        chosen = np.maximum(options[order], 0)
        within = np.flatnonzero(self._within(np.full(len(order), i), chosen) & (step_s[order] < ILLEGAL_S))
        bound = float(sim.throughput(index, step_s[[k]])[0])
        if not len(within):
            return bound, 0.0, chosen[0]
        best = int(within[0])
        return bound, float(sim.throughput(index, step_s[order[[best]]])[0]), chosen[best]


def _table(factor: Factor, index: IntArray | slice = slice(None)) -> Table:
    """A factor at some points."""
    values = factor.table[index]
    if not factor.classes:
        return Table.of_options(factor.variables, values)
    return Table(factor.variables, values, factor.classes)


def _largest(values: FloatArray, k: int) -> float:
    """The k-th largest value, 0 where there are fewer."""
    return float(np.partition(values, len(values) - k)[len(values) - k]) if 0 < k <= len(values) else 0.0


def _undominated(stage_s: FloatArray, stage_bytes: FloatArray, room: float) -> IntArray:
    """Labels that fit and that no other beats in every stage's seconds and bytes."""
    fits = np.flatnonzero(stage_bytes.max(1) <= room)
    order = fits[np.lexsort((stage_bytes[fits].sum(1), stage_s[fits].sum(1)))]
    kept: list[int] = []
    for k in order:
        if kept:
            others = np.array(kept)
            if ((stage_s[others] <= stage_s[k]) & (stage_bytes[others] <= stage_bytes[k])).all(1).any():
                continue
        kept.append(int(k))
    return np.array(kept, dtype=np.int64)
