"""The sharding problem as search algorithms see it: components, exact masks, counted evaluations.

Components in order: group, pp, tp, ep, batch (as sequences of one microbatch on one dp rank), the residual's layout,
how tokens reach their experts (where experts can be split), then one choice per fused op. dp and etp follow. Degrees
are masked by the table of legal points (whose least memory fits); choices by their own legality, the residual's layout
and the memory that the choices still to come need at least.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from autoshard.search.keys import PrefixSet
from autoshard.search.protocol import Scores
from autoshard.search.room import Held, Room
from autoshard.sharding.option import Choice
from autoshard.sharding.patterns import PATTERNS, role_of
from autoshard.sharding.strategy import DISPATCH, RESIDUAL, RESIDUAL_LAYOUTS, Strategy
from autoshard.simulator.points import DEGREE_COMPONENTS
from autoshard.simulator.simulator import Simulator

IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
FloatArray = NDArray[np.float64]


class KnownScores(Protocol):
    """Scores that need not be worked out again. They count as calls like any other."""

    def scores(self, x: IntArray, evaluate: Callable[[IntArray], Scores]) -> Scores:
        """Scores of rows, those not known by ``evaluate``."""
        ...


@dataclass(frozen=True, slots=True)
class _Prefix:
    """Rows filled left of a column, and what they hold."""

    columns: IntArray
    held: Held

    def continues(self, x: IntArray, position: int) -> bool:
        """Whether ``x`` left of ``position`` is these rows with one more column filled."""
        width = self.columns.shape[1]
        return width == position - 1 and len(x) == len(self.columns) and np.array_equal(x[:, :width], self.columns)


class ShardingProblem:
    """A `Problem` over the tables of a simulator with a budget of evaluations.

    A call is one strategy evaluated, whoever asks; beyond the budget nothing is evaluated.
    """

    def __init__(self, simulator: Simulator, *, budget: int = 4000, known: KnownScores | None = None) -> None:
        """``known`` has scores of earlier runs, and is told new ones (`autoshard.search.state`)."""
        self.sim = simulator
        self.budget = budget
        self.known = known
        self._calls = 0
        p = simulator.points
        columns = (p.group, p.pp, p.tp, p.ep, p.sequences)
        self._values = [np.unique(c) for c in columns]
        self._rows = np.stack([np.searchsorted(v, c) for v, c in zip(self._values, columns, strict=True)], 1)
        self._prefixes = PrefixSet(self._rows, np.array([len(v) for v in self._values]))
        self.component_names: tuple[str, ...] = (*DEGREE_COMPONENTS, *(v.key for v in simulator.variables))
        sizes = [*(len(v) for v in self._values), *(len(v.choices) for v in simulator.variables)]
        self.num_options: IntArray = np.array(sizes, dtype=np.int64)
        self.num_degree_components = len(DEGREE_COMPONENTS)
        self.room = Room(simulator)
        self._last: _Prefix | None = None

    @property
    def calls(self) -> int:
        """Strategies evaluated so far."""
        return self._calls

    @cached_property
    def component_masks(self) -> BoolArray:
        """[C, A] options that are legal somewhere, whatever the other components are."""
        found = np.arange(int(self.num_options.max())) < self.num_options[:, None]
        for v, variable in enumerate(self.sim.variables, self.num_degree_components):
            found[v, : len(variable.choices)] = variable.legal.any(0)
        return found

    def points_of(self, x: IntArray) -> IntArray:
        """Index of the degree point of each row, -1 where there is none."""
        return self._prefixes.index(x[:, : self.num_degree_components])

    def mask(self, x: IntArray, position: int) -> BoolArray:
        """Allowed options of the component at ``position``, [n, max options]; at least one is allowed."""
        allowed = np.zeros((len(x), int(self.num_options.max())), dtype=bool)
        size = int(self.num_options[position])
        if position < self.num_degree_components:
            allowed[:, :size] = self._prefixes.allowed(x, position)
            return allowed
        v = position - self.num_degree_components
        held = self._held(x, position)
        legal = self.sim.variables[v].legal[held.point] & self._goes_with_residual[v][x[:, self.num_degree_components]]
        both = legal.copy()
        tight = np.flatnonzero(self.room.tight[held.point])
        if len(tight) == len(x):
            both &= self.room.fits(held, v)
        elif len(tight):
            both[tight] &= self.room.fits(Held(held.point[tight], held.profiles[tight], held.least[tight]), v)
        allowed[:, :size] = np.where(both.any(1, keepdims=True), both, legal)
        return allowed

    @cached_property
    def _goes_with_residual(self) -> list[BoolArray]:
        """Of every variable, whether its options go with each layout of the residual: [layouts, options]."""
        layouts = [RESIDUAL_LAYOUTS[c] for c in self.sim.variables[0].choices]
        return [np.array([[n in (None, a) for n in v.needs_residual] for a in layouts]) for v in self.sim.variables]

    def _held(self, x: IntArray, position: int) -> Held:
        """What rows filled left of a column hold, from those of the last call where they continue it.

        Masks are asked for column by column, so that each call adds one variable's bytes instead of all of them.
        """
        last, first = self._last, self.num_degree_components
        if last is not None and last.continues(x, position) and position > first:
            held = self.room.take(last.held, position - 1 - first, x[:, position - 1])
        else:
            held = self.room.begin(self.points_of(x))
            for u in range(position - first):
                held = self.room.take(held, u, x[:, first + u])
        self._last = _Prefix(columns=x[:, :position].copy(), held=held)
        return held

    @cached_property
    def _legal_at(self) -> BoolArray:
        """[points, variables, options] whether each choice for itself is legal; False past a variable's options."""
        return _padded([v.legal for v in self.sim.variables])

    @cached_property
    def _legal_with(self) -> BoolArray:
        """[layouts of the residual, variables, options] `_goes_with_residual` in one array."""
        return _padded(self._goes_with_residual)

    def with_legal_choices(self, x: IntArray) -> IntArray:
        """Rows at legal degrees with every choice moved to the nearest that the rules allow, memory aside."""
        y, first, point = x.copy(), self.num_degree_components, self.points_of(x)
        legal = self._legal_at[point]
        options = np.arange(legal.shape[2])
        nearest = np.where(legal[:, 0], np.abs(options - y[:, first, None]), len(options)).argmin(1)
        legal &= self._legal_with[nearest]
        distance = np.abs(options - y[:, first:, None])
        y[:, first:] = np.where(legal, distance, len(options)).argmin(2)
        return y

    def nearest_choices(self, x: IntArray) -> IntArray:
        """Rows at legal degrees with one choice after the other moved to the nearest that `mask` allows.

        That is what the rules alone leave, up to the first choice after which even the least rest overflows: it takes
        the nearest option that fits, and the same holds from there on.
        """
        y, first, point = self.with_legal_choices(x), self.num_degree_components, self.points_of(x)
        rows = np.flatnonzero(self.room.tight[point])
        while len(rows):
            over, held = self.room.first_over(point[rows], y[rows, first:])
            for v in np.unique(over[over >= 0]).tolist():
                at = np.flatnonzero(over == v)
                fits = self.room.fits(Held(held.point[at], held.profiles[at], held.least[at]), v)
                fits &= self.sim.variables[v].legal[held.point[at]] & self._goes_with_residual[v][y[rows[at], first]]
                over[at[~fits.any(1)]] = -1  # as `mask` has it: then memory is let be
                at, fits = at[fits.any(1)], fits[fits.any(1)]
                distance = np.abs(np.arange(fits.shape[1]) - x[rows[at], first + v, None])
                y[rows[at], first + v] = np.where(fits, distance, fits.shape[1]).argmin(1)
            rows = rows[over >= 0]
        return y

    def legal(self, x: IntArray) -> BoolArray:
        """Whether rows are legal points with legal choices that fit in memory."""
        point = self.points_of(x)
        ok = point >= 0
        dims = x[:, self.num_degree_components :]
        ok &= ((dims >= 0) & (dims < self.num_options[self.num_degree_components :])).all(1)
        rows = np.flatnonzero(ok)
        at, dims = point[rows], dims[rows]
        columns = np.arange(dims.shape[1])
        alone: BoolArray = self._legal_at[at[:, None], columns, dims]
        together: BoolArray = self._legal_with[dims[:, :1], columns, dims]
        good: BoolArray = np.logical_and.reduce(alone & together, axis=1)
        tight = np.flatnonzero(self.room.tight[at])
        held = self.room.part_bytes(at[tight], dims[tight])
        good[tight] &= self.room.total(at[tight], held) <= self.sim.capacity_bytes
        ok[rows] = good
        return ok

    def evaluate(self, x: IntArray) -> Scores:
        """Score rows and count them; past the budget rows are left out."""
        x = x[: max(self.budget - self._calls, 0)]
        self._calls += len(x)
        return self._scores(x) if self.known is None else self.known.scores(x, self._scores)

    def _scores(self, x: IntArray) -> Scores:
        point = self.points_of(x)
        throughput, violation = np.zeros(len(x)), np.ones(len(x))
        rows = np.flatnonzero(point >= 0)
        if len(rows):
            e = self.sim.evaluate(point[rows], x[rows, self.num_degree_components :])
            throughput[rows] = e.tokens_per_s / self.sim.cluster.num_devices
            violation[rows] = e.violation
        return Scores(throughput=throughput, violation=violation)

    def row(self, point: int, dims: tuple[int, ...]) -> IntArray:
        """The row of a degree point and options."""
        return np.array([*self._rows[point], *dims], dtype=np.int64)

    def strategy(self, row: IntArray | tuple[int, ...]) -> Strategy:
        """The strategy of a legal row."""
        x = np.array(row, dtype=np.int64)[None, :]
        return self.sim.strategy(int(self.points_of(x)[0]), x[0, self.num_degree_components :].tolist())

    def pattern_rows(self, pattern: str, *, residual: Choice = None, dispatch: Choice = None) -> IntArray:
        """A named pattern of choices at every degree point; what is not legal there is replicated."""
        roles = PATTERNS[pattern]
        n = len(self.sim.points)
        dims = np.zeros((n, len(self.sim.variables)), dtype=np.int64)
        blocks = {b.name: b for b in self.sim.graph.components()}
        for v, variable in enumerate(self.sim.variables):
            if variable.key == RESIDUAL:
                wanted = residual
            elif variable.key == DISPATCH:
                wanted = dispatch
            else:
                block_name, op_name = variable.key.split("/", 1)
                role = role_of(blocks[block_name], blocks[block_name].op(op_name))
                wanted = residual if role == "norm" else roles.get(role)
            at = variable.choices.index(wanted) if wanted in variable.choices else variable.choices.index(None)
            usable = variable.legal[:, at]
            if v:
                usable = usable & self._goes_with_residual[v][dims[:, 0], at]
            fallback = np.where(
                variable.legal[:, variable.choices.index(None)],
                variable.choices.index(None),
                variable.legal.argmax(1),
            )
            dims[:, v] = np.where(usable, at, fallback)
        return np.concatenate([self._rows, dims], 1)

    def megatron_points(self) -> IntArray:
        """Megatron's choices at every degree point, under every layout of the residual and dispatch of tokens.

        First with the residual replicated and tokens gathered for their experts, then the others where they are legal.
        A residual split by its tokens is Megatron's sequence parallelism: reduce_scatter and all_gather around the
        norms in place of the all_reduce; by its hidden dim it is this space's relative of it.
        """
        kinds: list[tuple[Choice, Choice]] = [(r, d) for d in (None, 0) for r in (None, 0, 1)]
        rows = [self.pattern_rows("megatron", residual=r, dispatch=d) for r, d in kinds]
        found = [rows[0]]
        for i, (residual, dispatch) in enumerate(kinds[1:], 1):
            # What is not legal at a point fell back to another kind's row there.
            new = np.ones(len(rows[i]), dtype=bool)
            for j, other in enumerate(kinds):
                if j != i and other in ((None, dispatch), (residual, None)):
                    new &= (rows[i] != rows[j]).any(1)
            found.append(rows[i][new])
        return np.concatenate(found)


def _padded(tables: list[BoolArray]) -> BoolArray:
    """[n, tables, most options] of tables [n, options], False where one has fewer options."""
    most = max(t.shape[1] for t in tables)
    return np.stack([np.pad(t, ((0, 0), (0, most - t.shape[1]))) for t in tables], 1)
