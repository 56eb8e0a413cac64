"""The exact optimum of the whole space, with proof: every degree point, every choice, under memory and limits.

Per degree point and assignment of the shared choices (the residual's layout, tied weights), each part's fastest choices
follow from elimination (`autoshard.search.eliminate`), and the throughput they give is an upper bound. Where they fit
in memory the bound is reached. The other points are opened best bound first, with (seconds, bytes) labels
(`autoshard.search.labels`), until no bound is above the best found, or above the k-th best where k are asked for.
Choices are tied over the repeats of a block.

Exact for one phase: throughput falls with the step's time alone, so the fastest choices that fit are the best of a
point, and a limit on the step is met by them if by any.
"""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autoshard.search.eliminate import Table, minimise, restrict
from autoshard.search.labels import fronts
from autoshard.simulator.simulator import Simulator
from autoshard.simulator.variables import ILLEGAL_S, Component

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactResult:
    """The optimum: its point and options (None when nothing is feasible), throughput in tokens/s of the cluster.

    ``values`` is the best throughput of every point that was settled; what is found of the others is a lower bound, 0
    where they were not opened. ``best_points`` are the points asked for, proven, best first. ``points_opened`` counts
    those that needed labels.
    """

    point: int | None
    dims: tuple[int, ...] | None
    tokens_per_s: float
    values: FloatArray
    dims_of: Mapping[int, tuple[int, ...]]
    best_points: tuple[int, ...]
    points_opened: int


class ExactSearch:
    """Exact optimisation over the tables of a simulator."""

    def __init__(self, simulator: Simulator) -> None:
        self.sim = simulator
        self.sizes = {i: len(v.choices) for i, v in enumerate(simulator.variables)}
        seen = [v for part in simulator.parts for v in part.variables()]
        self.shared = tuple(sorted({v for v in seen if seen.count(v) > 1} | {0}))

    def run(self, num_best: int = 1, kinds: IntArray | None = None) -> ExactResult:
        """Find the optimum, and the best points of the ``num_best`` best kinds.

        Args:
            num_best: Kinds to settle; fewer where fewer are feasible.
            kinds: The kind of every point ``[points]``, from 0 (for instance its degrees whatever the batch), of which
                the best point stands for all; by default each point is one.
        """
        sim = self.sim
        n = len(sim.points)
        everything = np.arange(n)
        kinds = everything if kinds is None else kinds
        values, best_dims = np.zeros(n), np.zeros((n, len(self.sizes)), dtype=np.int64)
        open_cells: list[tuple[float, int, tuple[int, ...]]] = []
        for fixed, bound, dims, fits in self._bounds({}, everything):
            better = fits & (bound > values)
            values[better], best_dims[better] = bound[better], dims[better]
            cell = tuple(fixed[v] for v in self.shared)
            open_cells += [(float(bound[i]), int(i), cell) for i in np.flatnonzero(~fits & (bound > 0))]
        best = np.zeros(int(kinds.max(initial=0)) + 1)
        np.maximum.at(best, kinds, values)
        enough = _largest(best, num_best)
        opened = 0
        for bound_value, i, cell in sorted(open_cells, key=lambda c: (-c[0], c[1], c[2])):
            if bound_value <= enough:
                break
            if bound_value <= best[kinds[i]]:
                continue
            opened += 1
            found = self._with_labels(i, dict(zip(self.shared, cell, strict=True)))
            if found is not None and found[0] > values[i]:
                values[i], best_dims[i] = found
                best[kinds[i]] = max(best[kinds[i]], found[0])
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
            values=values,
            dims_of=known,
            best_points=best_points,
            points_opened=opened,
        )

    def best_at(self, point: int, fixed: Mapping[int, int] | None = None) -> tuple[float, tuple[int, ...]] | None:
        """Best throughput (tokens/s) at a degree point and its options, some variables held; None if infeasible."""
        best: tuple[float, tuple[int, ...]] | None = None
        for cell, bound, dims, fits in self._bounds(fixed or {}, np.array([point])):
            if bound[0] <= (best[0] if best else 0.0):
                continue
            found = (float(bound[0]), dims[0]) if fits[0] else self._with_labels(point, cell)
            if found is not None and found[0] > (best[0] if best else 0.0):
                best = (found[0], tuple(int(o) for o in found[1]))
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

    def _bounds(
        self, fixed: Mapping[int, int], index: IntArray
    ) -> Iterator[tuple[dict[int, int], FloatArray, IntArray, BoolArray]]:
        """Bounds of points, per assignment of the shared variables that agrees with ``fixed``.

        Yields all that is held, and of every point its bound (0 where illegal or over the limit), the fastest options,
        and whether those fit in memory.
        """
        sim = self.sim
        for cell in itertools.product(*([fixed[v]] if v in fixed else range(self.sizes[v]) for v in self.shared)):
            held = {**fixed, **dict(zip(self.shared, cell, strict=True))}
            part_s, dims = self._fastest(held, index)
            step_s = sim.step_s(index, part_s, held[0])
            legal = step_s < ILLEGAL_S
            for v, option in held.items():
                legal &= sim.variables[v].legal[index, option]
            if sim.limit_s is not None:
                legal &= step_s <= sim.limit_s
            bound = np.where(legal, sim.throughput(index, step_s), 0.0)
            yield held, bound, dims, self._total_bytes(index, dims) <= sim.capacity_bytes

    def fastest_step(self) -> tuple[float, int] | None:
        """Least step (seconds) of any strategy that fits, its limit aside, and its point; None if nothing fits."""
        sim = self.sim
        everything = np.arange(len(sim.points))
        best: tuple[float, int] | None = None
        for cell in itertools.product(*(range(self.sizes[v]) for v in self.shared)):
            fixed = dict(zip(self.shared, cell, strict=True))
            part_s, dims = self._fastest(fixed, everything)
            step_s = sim.step_s(everything, part_s, fixed[0])
            ok = (step_s < ILLEGAL_S) & (self._total_bytes(everything, dims) <= sim.capacity_bytes)
            for v, option in fixed.items():
                ok &= sim.variables[v].legal[:, option]
            if ok.any():
                i = int(np.where(ok, step_s, np.inf).argmin())
                if best is None or step_s[i] < best[0]:
                    best = (float(step_s[i]), i)
        return best

    def _tables(self, part: Component, fixed: Mapping[int, int], index: IntArray) -> list[Table]:
        """Factors of a part at some points under fixed options, illegal options priced out."""
        tables = [restrict(Table(f.variables, f.table[index]), fixed) for f in part.factors]
        for v in part.variables():
            if v not in fixed:
                legal = self.sim.variables[v].legal[index]
                tables.append(Table((v,), np.where(legal, 0.0, ILLEGAL_S)))
        return tables

    def _fastest(self, fixed: Mapping[int, int], index: IntArray) -> tuple[FloatArray, IntArray]:
        """Least seconds of every part [points, parts] and the options that reach them [points, variables]."""
        dims = np.zeros((len(index), len(self.sizes)), dtype=np.int64)
        for v, option in fixed.items():
            dims[:, v] = option
        seconds = []
        for part in self.sim.parts:
            least, options = minimise(self._tables(part, fixed, index), self.sizes)
            seconds.append(least)
            for v, chosen in options.items():
                dims[:, v] = chosen
        return np.stack(seconds, 1), dims

    def _total_bytes(self, index: IntArray, dims: IntArray) -> FloatArray:
        held = np.stack([sum(c.num_bytes(index, dims)) for c in self.sim.parts], 1)
        return self.sim.held_bytes(index, held) + self.sim.fixed_bytes(index)

    def _with_labels(self, i: int, fixed: Mapping[int, int]) -> tuple[float, IntArray] | None:
        """Best throughput of point ``i`` under memory, and its options; None if nothing fits."""
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
        k = int(step_s.argmin())
        if step_s[k] >= ILLEGAL_S or (sim.limit_s is not None and step_s[k] > sim.limit_s):
            return None
        return float(sim.throughput(index, step_s[[k]])[0]), np.maximum(options[k], 0)


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
