r"""The step of strategies under effects, and additive problems that are never slower: what `exact` bounds it with.

A layer takes its additive time, or that of the overlap schedule (`overlap`); with two-batch overlap layers with experts
also have the time of two halves (`two_batch`), and a step takes the faster mode. Under ``skew`` the layers with experts
have levels, the stages are counted by kind and level, and the slowest is charged.

**Relaxations.** Each mode is bounded from below by a sum of factors, with weights :math:`\lambda \in [0, 1]` that may
be chosen per degree point:

- one batch: the sum less :math:`h (\lambda k + (1 - \lambda) w)` of every move ``k`` that can be hidden, ``w`` being
  what it can be hidden behind (`overlap.windows`);
- two halves: :math:`\max(y, x + (1 - h) y) \ge \lambda x + (1 - h \lambda) y`, so that four of them come to at least
  :math:`2 \lambda (a + m) + 2 (1 - h \lambda)(d + c)`; contention only adds;
- skew: of every kind of layer the mean over the layers of a stage, at the stage where it is least, entry by entry.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from autoshard.cost import serving_law
from autoshard.cost.formats import MODEL_FORMATS, Formats
from autoshard.hardware import Cluster
from autoshard.ir import Block, OpGraph
from autoshard.sharding.degrees import partition
from autoshard.sharding.layout import Step
from autoshard.sharding.option import Choice
from autoshard.simulator.effects.block import BlockSeconds, PricedBlock, has_experts, is_routed
from autoshard.simulator.effects.laws import HIDDEN, SKEW_LEVELS, layer_levels
from autoshard.simulator.effects.overlap import overlapped_s, windows
from autoshard.simulator.effects.two_batch import phases, two_batch_s
from autoshard.simulator.lengths import own_lengths
from autoshard.simulator.points import Points
from autoshard.simulator.stages import padded_profiles
from autoshard.simulator.tables import TableBuilder
from autoshard.simulator.variables import ILLEGAL_S, Component, Factor
from autoshard.workload import Workload

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
ONE_BATCH, TWO_BATCH = "one batch", "two batches"
MEAN_SKEW = serving_law("vllm").routing_skew
"""Mean skew over layers, as serving has it. [fitted: autoshard/cost/serving.yaml, `routing_skew`]"""


class FarBuilder(TableBuilder):
    """Prices only the collectives whose group spans nodes; all others are free."""

    def step_s(self, step: Step, *, last: bool) -> FloatArray:
        """Seconds of a step at every point."""
        found = super().step_s(step, last=last)
        return np.where(self.points.in_node[step.axis] < self.points.sizes[step.axis], found, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectModel:
    """Effects on a simulator's tables.

    ``full`` are the priced parts of a stage (prologue, kinds of block, epilogue), ``half`` those with experts at half
    the sequences (None where not, or without two-batch). ``levels`` is the level of skew of every layer.
    """

    graph: OpGraph
    effects: tuple[str, ...]
    points: Points
    send_s: FloatArray
    stages: tuple[int, ...]
    full: tuple[PricedBlock, ...]
    half: tuple[PricedBlock | None, ...]
    levels: tuple[int, ...]
    profiles: FloatArray = field(init=False)
    pp_index: IntArray = field(init=False)

    def __post_init__(self) -> None:
        pps, index = np.unique(self.points.pp, return_inverse=True)
        first = np.cumsum([0, *(b.num_levels for b in self.full[1:-1])])
        kinds = tuple(int(first[k]) + level for k, level in zip(self.graph.layers, self.levels, strict=True))
        found = padded_profiles(kinds, int(first[-1]), pps, self.stages)
        object.__setattr__(self, "profiles", found)
        object.__setattr__(self, "pp_index", index)

    @property
    def sharing(self) -> bool:
        """Whether links are shared."""
        return "contention" in self.effects

    def step_s(self, point: IntArray, dims: IntArray) -> FloatArray:
        """Seconds of the step of strategies ``(point [m], dims [m, variables])``, in the faster mode."""
        modes = self._modes(point, dims)
        return np.minimum(modes[ONE_BATCH], modes.get(TWO_BATCH, modes[ONE_BATCH]))

    def _modes(self, point: IntArray, dims: IntArray) -> dict[str, FloatArray]:
        one = [self._one_batch_s(part, part.at(point, dims)) for part in self.full]
        found = {ONE_BATCH: self._slowest_s(point, dims, one)}
        if any(half is not None for half in self.half):
            two = [
                seconds if half is None else two_batch_s(half.block, half.at(point, dims), sharing=self.sharing)
                for half, seconds in zip(self.half, one, strict=True)
            ]
            found[TWO_BATCH] = np.where(
                self.points.sequences[point] > 1, self._slowest_s(point, dims, two), found[ONE_BATCH]
            )
        return found

    def _one_batch_s(self, part: PricedBlock, seconds: BlockSeconds) -> FloatArray:
        if "overlap" not in self.effects:
            return seconds.total()
        return overlapped_s(part.block, seconds, sharing=self.sharing)

    def _slowest_s(self, point: IntArray, dims: IntArray, parts: Sequence[FloatArray]) -> FloatArray:
        """``pp`` times the slowest stage and its hand-over from the seconds of every part ``[levels or 1, m]``."""
        stages = (self.profiles[self.pp_index[point]] * self._columns(parts)[:, None, :]).sum(-1).max(1)
        found: FloatArray = self.points.pp[point] * (stages + self.send_s[point, dims[:, 0]])
        return found

    def _columns(self, parts: Sequence[FloatArray]) -> FloatArray:
        """``[m, parts and levels]``."""
        rows = [
            np.broadcast_to(s, (priced.num_levels, s.shape[-1])) for s, priced in zip(parts, self.full, strict=True)
        ]
        return np.concatenate(rows).T

    def mode(self, point: int, dims: tuple[int, ...]) -> str:
        """Which mode a strategy runs in."""
        modes = self._modes(np.array([point]), np.array([dims], dtype=np.int64))
        return TWO_BATCH if TWO_BATCH in modes and modes[TWO_BATCH] < modes[ONE_BATCH] else ONE_BATCH

    def is_two_batch(self, point: int, dims: tuple[int, ...]) -> bool | None:
        """Whether a strategy's step runs as two halves; None where that effect is not one of these."""
        return self.mode(point, dims) == TWO_BATCH if "two-batch" in self.effects else None

    def opened(self, point: int, dims: tuple[int, ...]) -> list[tuple[str, str, str, float]]:
        """Terms (part, label, kind, seconds) of the slowest stage that sum to the step without hand-overs.

        What is hidden belongs to no single op: the terms of a layer share its time in proportion to their own seconds.
        """
        at, options = np.array([point]), np.array([dims], dtype=np.int64)
        halves = self.half if self.mode(point, dims) == TWO_BATCH else (None,) * len(self.full)
        priced = [half or full for half, full in zip(halves, self.full, strict=True)]
        seconds = [part.at(at, options) for part in priced]
        times = [
            self._one_batch_s(part, s) if half is None else two_batch_s(part.block, s, sharing=self.sharing)
            for part, s, half in zip(priced, seconds, halves, strict=True)
        ]
        profiles = self.profiles[self.pp_index[point]]
        slowest = profiles[(profiles * self._columns(times)).sum(-1).argmax()]
        found, start = [], 0
        for part, s, time in zip(priced, seconds, times, strict=True):
            counts = slowest[start : start + part.num_levels] * float(self.points.pp[point])
            start += part.num_levels
            total = s.total()
            share = counts * np.broadcast_to(time / np.where(total > 0, total, 1.0), (part.num_levels, 1))[:, 0]
            for factor in part.component.factors:
                own = s.compute if factor.what != "collective" else s.moves if factor.moves else s.inside
                value = float((np.broadcast_to(own[factor.label], (part.num_levels, 1))[:, 0] * share).sum())
                if value > 0:
                    found.append((part.component.name, factor.label, factor.what, value))
        return found

    @property
    def modes(self) -> tuple[str, ...]:
        """Modes a step may run in."""
        return (ONE_BATCH,) if all(half is None for half in self.half) else (ONE_BATCH, TWO_BATCH)

    def relaxed(self, mode: str, weight: float | FloatArray = 1.0) -> tuple[Component, ...]:
        """Parts of an additive problem whose step is never above the step of ``mode``; ``weight`` per point or one."""
        weight = np.broadcast_to(np.asarray(weight, dtype=np.float64), (len(self.points),))
        ones, found = np.ones(len(self.points)), []
        for i, (full, half) in enumerate(zip(self.full, self.half, strict=True)):
            if mode == ONE_BATCH or half is None:
                found.append(self._relaxed_one(full, i - 1, weight if mode == ONE_BATCH else ones))
            else:
                found.append(self._relaxed_two(half, full.component, i - 1, weight))
        return tuple(found)

    def _relaxed_one(self, part: PricedBlock, kind: int, weight: FloatArray) -> Component:
        hidden = windows(part.block) if "overlap" in self.effects else {}
        # Weights may differ by move: those of what the experts make are the long ones. What never moves hides nothing.
        each = {n: np.ones(len(self.points)) for n in hidden}
        routed = {op.name for op in part.block.ops if is_routed(op)}
        for factor in part.component.factors:
            if factor.moves and factor.label in hidden and factor.label in routed:
                moved = np.where(factor.table >= ILLEGAL_S, 0.0, factor.table).reshape(len(self.points), -1).any(1)
                each[factor.label] = np.where(moved, weight, 1.0)
        factors = []
        for factor in part.component.factors:
            own = each.get(factor.label, 0.0) if factor.moves else 0.0
            behind = sum(
                1.0 - each[n] for n, w in hidden.items() if factor.label in (w.moves if factor.moves else w.ops)
            )
            factors.append(_scaled(self._least_level(part, factor, kind), 1.0 - HIDDEN * (own + behind)))
        return replace(part.component, factors=tuple(factors))

    def _relaxed_two(self, half: PricedBlock, full: Component, kind: int, weight: FloatArray) -> Component:
        """Bytes are the full batch's. A single sequence has no halves."""
        p = phases(half.block)
        travelling = p.moves_entering | p.moves_leaving
        factors = []
        for factor in half.component.factors:
            by = 2.0 * (1.0 - HIDDEN * weight) if factor.moves and factor.label in travelling else 2.0 * weight
            factors.append(_scaled(self._least_level(half, factor, kind), by))
        single = np.where(self.points.sequences > 1, 0.0, ILLEGAL_S)
        factors.append(Factor(variables=(), table=single, label="two-batch", what="halves"))
        return replace(full, factors=tuple(factors))

    def _least_level(self, part: PricedBlock, factor: Factor, kind: int) -> Factor:
        """A factor's mean over the layers of its kind of a stage, at the stage where it is least."""
        levels = part.compute_factors(factor)
        if len(levels) == 1:
            return factor
        table = np.empty_like(factor.table)
        for pp in np.unique(self.points.pp):
            at = np.flatnonzero(self.points.pp == pp)
            counts = self._stage_levels(kind, int(pp))
            means = [sum(n * f.table[at] for n, f in zip(row, levels, strict=True)) / row.sum() for row in counts]
            table[at] = np.minimum.reduce(means)
        return replace(factor, table=table)

    def _stage_levels(self, kind: int, pp: int) -> FloatArray:
        """How many layers of a kind each stage that has some holds at every level: ``[stages, levels]``, distinct."""
        layers, start, rows = self.graph.layers, 0, set()
        for count in self.stages if len(self.stages) == pp else partition(len(layers), pp):
            mine = [self.levels[i] for i in range(start, start + count) if layers[i] == kind]
            start += count
            if mine:
                rows.add(tuple(np.bincount(mine, minlength=len(SKEW_LEVELS)).tolist()))
        return np.array(sorted(rows), dtype=np.float64)


def _scaled(factor: Factor, weight: float | FloatArray) -> Factor:
    if isinstance(weight, float):
        weight = np.full(len(factor.table), weight)
    by_point = weight.reshape(-1, *(1 for _ in factor.variables))
    table = np.where(factor.table >= ILLEGAL_S, ILLEGAL_S, factor.table * by_point)
    return replace(factor, table=table)


def build_effects(
    graph: OpGraph,
    cluster: Cluster,
    workload: Workload,
    points: Points,
    pinned: Mapping[str, Choice],
    components: Mapping[str, Component],
    *,
    formats: Formats = MODEL_FORMATS,
    stages: tuple[int, ...] = (),
    uneven: bool = False,
) -> EffectModel:
    """The effects that a workload names, on the ``components`` of its tables (with ``"send"``)."""
    effects, blocks = workload.effects, graph.components()
    skews = tuple(MEAN_SKEW * level for level in SKEW_LEVELS) if "skew" in effects else ()

    def builder(kind: type[TableBuilder], at: Points, skew: float | None = None) -> TableBuilder:
        return kind(
            graph, cluster, workload, at, pinned, own_lengths(workload), None, formats, uneven, skew=skew
        )  # fmt: skip

    def priced(at: Points, block: Block, component: Component) -> PricedBlock:
        routed = [op for op in block.ops if is_routed(op)]
        levels = [{op.name: builder(TableBuilder, at, s).compute(block, op) for op in routed} for s in skews if routed]
        far = builder(FarBuilder, at).component(block) if "contention" in effects else None
        return PricedBlock(block, component, levels=levels, far=far)

    halved = dataclasses.replace(points, sequences=(points.sequences + 1) // 2)
    half: list[PricedBlock | None] = [None] * len(blocks)
    if "two-batch" in effects:
        for i, block in enumerate(blocks):
            if has_experts(block):
                half[i] = priced(halved, block, builder(TableBuilder, halved).component(block))
    with_experts = [has_experts(blocks[1 + kind]) for kind in graph.layers]
    each = iter(layer_levels(sum(with_experts)))
    levels = tuple(next(each) if skews and own else 0 for own in with_experts)
    return EffectModel(
        graph=graph,
        effects=effects,
        points=points,
        send_s=components["send"].factors[0].table,
        stages=stages,
        full=tuple(priced(points, block, components[block.name]) for block in blocks),
        half=tuple(half),
        levels=levels,
    )
