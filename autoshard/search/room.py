"""Whether strategies filled component by component can still be completed within memory.

Per row and stage profile the state is what a strategy holds at least: fixed bytes, those of what is chosen, and the
least that each choice to come needs. An option fits if the fullest stage still does with it in place of its variable's
least. So asking and choosing cost a few small operations, however many choices were made before.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from autoshard.simulator.simulator import Simulator
from autoshard.simulator.variables import ILLEGAL_BYTES

IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
FloatArray = NDArray[np.float64]
ROUNDING = 1e-12
"""Relative room for sums that `ShardingProblem.legal` takes in another order."""


@dataclass(frozen=True, slots=True)
class Held:
    """Rows under way: their degree points [n], stage profiles [n, profiles, parts], least bytes [n, profiles]."""

    point: IntArray
    profiles: FloatArray
    least: FloatArray


class Room:
    """Memory of strategies of a simulator."""

    def __init__(self, simulator: Simulator) -> None:
        self.sim = simulator
        self._room = simulator.capacity_bytes * (1.0 - ROUNDING)

    @cached_property
    def _bytes(self) -> list[list[tuple[int, FloatArray]]]:
        """Of every variable, the parts that hold bytes under it and how many per option: [points, options]."""
        found: list[list[tuple[int, FloatArray]]] = [[] for _ in self.sim.variables]
        for j, part in enumerate(self.sim.parts):
            by_variable: dict[int, FloatArray] = {}
            for v, table in (*part.weights, *part.kv):
                by_variable[v] = by_variable.get(v, 0.0) + table
            for v, table in by_variable.items():
                found[v].append((j, table))
        return found

    @cached_property
    def _least(self) -> list[list[FloatArray]]:
        """Of every variable and part that holds bytes under it, the least of the legal options: [points]."""
        return [
            [np.where(variable.legal, table, ILLEGAL_BYTES).min(1) for _, table in tables]
            for variable, tables in zip(self.sim.variables, self._bytes, strict=True)
        ]

    @cached_property
    def _least_of_all(self) -> FloatArray:
        """[points, parts] least bytes of all choices."""
        total = np.zeros((len(self.sim.points), len(self.sim.parts)))
        for tables, least in zip(self._bytes, self._least, strict=True):
            for (j, _), each in zip(tables, least, strict=True):
                total[:, j] += each
        return total

    @cached_property
    def tight(self) -> BoolArray:
        """[points] at which some choices overflow."""
        most = np.zeros((len(self.sim.points), len(self.sim.parts)))
        for tables in self._bytes:
            for j, table in tables:
                most[:, j] += table.max(1)
        return self.total(np.arange(len(self.sim.points)), most) > self._room

    @cached_property
    def _more(self) -> tuple[list[FloatArray], IntArray, IntArray]:
        """Bytes over the least, [points, options], of every variable and part that holds bytes; the two's indices."""
        found = [
            (table - least[:, None], v, j)
            for v, (tables, leasts) in enumerate(zip(self._bytes, self._least, strict=True))
            for (j, table), least in zip(tables, leasts, strict=True)
        ]
        variables, parts = (np.array([entry[i] for entry in found], dtype=np.int64) for i in (1, 2))
        return [entry[0] for entry in found], variables, parts

    def first_over(self, point: IntArray, dims: IntArray) -> tuple[IntArray, Held]:
        """[n] the first variable with whose option even the least rest overflows, -1 if none; what is held before it.

        Options must be legal ones: these never need less than the least.
        """
        tables, variables, parts = self._more
        start = self.begin(point)
        more = np.stack([t[point, dims[:, v]] for t, v in zip(tables, variables, strict=True)], 1)
        steps = np.concatenate([start.least[:, :, None], more[:, None] * start.profiles[:, :, parts]], 2)
        held = np.cumsum(steps, 2)  # as `take` adds them, one after the other
        over = held.max(1)[:, 1:] > self._room
        first = np.where(over.any(1), variables[over.argmax(1)], -1)
        before = np.searchsorted(variables, np.maximum(first, 0))
        return first, Held(point, start.profiles, held[np.arange(len(point)), :, before])

    def total(self, point: IntArray, part_bytes: FloatArray) -> FloatArray:
        """[n] bytes of the fullest stage from those of every part [n, parts]."""
        return self.sim.held_bytes(point, part_bytes) + self.sim.fixed_bytes(point)

    def part_bytes(self, point: IntArray, dims: IntArray) -> FloatArray:
        """[n, parts] bytes of complete strategies."""
        total = np.zeros((len(point), len(self.sim.parts)))
        for v, tables in enumerate(self._bytes):
            for j, table in tables:
                total[:, j] += table[point, dims[:, v]]
        return total

    def begin(self, point: IntArray) -> Held:
        """Rows with nothing chosen but their degrees."""
        profiles = self.sim.profiles_of(point)
        least = (profiles * self._least_of_all[point][:, None]).sum(-1) + self.sim.fixed_bytes(point)[:, None]
        return Held(point, profiles, least)

    def fits(self, held: Held, v: int) -> BoolArray:
        """[n, options] of the next variable after which the least rest still fits."""
        total = np.repeat(held.least[:, None], len(self.sim.variables[v].choices), 1)
        for (j, table), least in zip(self._bytes[v], self._least[v], strict=True):
            more = table[held.point] - least[held.point][:, None]
            total += more[:, :, None] * held.profiles[:, None, :, j]
        found: BoolArray = total.max(2) <= self._room
        return found

    def take(self, held: Held, v: int, option: IntArray) -> Held:
        """The rows with an option of the next variable chosen."""
        total = held.least
        for (j, table), least in zip(self._bytes[v], self._least[v], strict=True):
            more = table[held.point, option] - least[held.point]
            total = total + more[:, None] * held.profiles[:, :, j]
        return Held(held.point, held.profiles, total)
