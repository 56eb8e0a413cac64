r"""Throughput and memory of strategies, batched: what the search is scored by.

A replica of pp stages keeps ``microbatches`` (pp of them, unless the batch is smaller) moving. With ``t`` the time of
the slowest stage for one microbatch, hand-over included, a microbatch is back at the first stage after

.. math:: T = pp \cdot t

which is the time per output token in decode and, for a prompt, the time to its first token. Throughput of a replica is
the tokens of its batch per ``T``; a batch of fewer microbatches than stages leaves stages idle (the bubble) with the
same ``T``. The objective divides by every device of the cluster, idle ones included. Times are sums of factor tables
(`autoshard.simulator.tables`), so a prediction can be opened into its terms.

A serving workload mixes decode steps and prompts; ``step_s`` is then a request's time per token it makes, and TPOT and
TTFT are measures of their own (`autoshard.simulator.measures`).

Neglected, unless the workload names them as effects (`autoshard.simulator.effects`): overlap of collectives with
compute, contention, skew. An engine's host outside serving.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from autoshard.cost import serving_law
from autoshard.cost.formats import MODEL_FORMATS, Formats
from autoshard.errors import InvalidInputError
from autoshard.hardware import Cluster
from autoshard.ir import OpGraph
from autoshard.sharding.option import Choice
from autoshard.sharding.strategy import Strategy
from autoshard.sharding.wider import check_wider
from autoshard.simulator.amounts import Amounts
from autoshard.simulator.effects import EffectModel, build_effects
from autoshard.simulator.lengths import Lengths, chunk_lengths, own_lengths
from autoshard.simulator.measures import Measure, serving_measures
from autoshard.simulator.memory import WORKSPACE_BYTES, activation_bytes
from autoshard.simulator.points import Points, make_points
from autoshard.simulator.stages import padded_profiles
from autoshard.simulator.tables import build_tables
from autoshard.simulator.variables import ILLEGAL_BYTES, ILLEGAL_S, Component, Variable
from autoshard.workload import Workload

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
DEFAULT_ENGINE = "vllm"
"""Whose kernels and host a serving workload is priced with, if it names no engine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Predictions for m strategies (arrays [m]).

    ``step_s`` is the time per token (decode), to the first token (prefill) or of a request per token it makes (serve);
    ``tokens_per_s`` that of the whole
    cluster, 0 where infeasible; ``violation`` the relative excess over memory and limits, 0 where feasible.
    """

    step_s: FloatArray
    tokens_per_s: FloatArray
    weights_bytes: FloatArray
    kv_bytes: FloatArray
    activation_bytes: FloatArray
    violation: FloatArray


class Simulator:
    """Cost tables of one model on one cluster under one workload.

    ``points`` are the degree points; a strategy is (point index, option index per variable). ``stages`` are the layers
    of each pipeline stage, of strategies with as many stages; otherwise layers are dealt evenly.
    """

    def __init__(
        self,
        graph: OpGraph,
        cluster: Cluster,
        workload: Workload,
        *,
        fixed: Mapping[str, int] | None = None,
        pinned: Mapping[str, Choice] | None = None,
        points: Points | None = None,
        formats: Formats = MODEL_FORMATS,
        stages: tuple[int, ...] = (),
        uneven: bool = False,
        wider: tuple[str, ...] = (),
    ) -> None:
        """Tables at all legal points, or at those given.

        Args:
            graph: The model.
            cluster: Where it runs.
            workload: What is served.
            fixed: Degrees that are held.
            pinned: Choices that are held.
            points: Degree points instead of all that are legal; ``fixed`` is then only for messages.
            formats: How the engine of a serving workload stores weights; in the workload's dtype by default.
            stages: Layers of each pipeline stage, of strategies with as many stages; otherwise layers are dealt evenly.
            uneven: Whether heads and widths that do not divide may be filled up with zeros.
            wider: Parts of the wider space (`autoshard.sharding.wider`), which are not there by default.
        """
        self.graph, self.cluster, self.workload = graph, cluster, workload
        self.fixed, self.pinned, self.stages = dict(fixed or {}), dict(pinned or {}), stages
        self.formats, self.uneven, self.wider = formats, uneven, wider
        check_wider(wider, workload.phase)
        if wider and workload.effects:
            raise InvalidInputError(
                f"effects ({', '.join(workload.effects)}) are not priced in the wider space ({', '.join(wider)}): "
                "leave one of them out"
            )
        self.engine = serving_law(workload.engine or DEFAULT_ENGINE) if workload.phase == "serve" else None
        if points is None:
            points = make_points(graph, cluster, self.fixed, workload.concurrency, uneven=uneven)
        self._set_points(points, priced=False)
        reachable = np.stack([v.legal.any(1) for v in self.variables], 1).all(1)
        if not reachable.any():
            pins = [f"{v.key}={self.pinned[v.key]}" for v in self.variables if v.key in self.pinned]
            raise InvalidInputError(f"no legal degrees allow the pinned {', '.join(pins)} (widths must divide)")
        least = np.where(reachable, self.minimum_bytes(), np.inf)
        keep = least <= self.capacity_bytes
        self.smallest_bytes = float(least.min())
        self.num_points_before_memory = len(points)
        self.any_fits = bool(keep.any())
        # Where nothing fits every point stays, priced, so that it can still be said what each would take.
        self._set_points(points.take(keep) if self.any_fits else points, priced=True)

    def _set_points(self, points: Points, *, priced: bool) -> None:
        self.points = points
        self.variables: tuple[Variable, ...]
        self.components: dict[str, Component]
        self.variables, self.components = self._tables(points, own_lengths(self.workload), priced=priced)
        names = [b.name for b in self.graph.components()]
        if self.engine is not None and priced:
            chunk = chunk_lengths(self.workload, self.engine.chunk_tokens)
            _, prompts = self._tables(points, chunk, priced=True)
            objective, *limited = serving_measures(
                names, self.components, prompts, points, self.workload, self.engine
            )  # fmt: skip
        else:
            parts = tuple(self.components[n] for n in names)
            limit_s = self.workload.tpot_s if self.workload.phase == "decode" else self.workload.ttft_s
            own_limit = None if self.engine is not None else limit_s
            send_s = self.components["send"].factors[0].table
            objective, limited = Measure(name="step", parts=parts, send_s=send_s, limit_s=own_limit), []
        self.objective, self.limited = objective, tuple(limited)
        self.effects: EffectModel | None = None
        if priced and self.workload.effects:
            self.effects = build_effects(
                self.graph,
                self.cluster,
                self.workload,
                points,
                self.pinned,
                self.components,
                formats=self.formats,
                stages=self.stages,
                uneven=self.uneven,
            )
        self.parts = objective.parts
        self.send_s = objective.send_s
        pps, self._pp_index = np.unique(points.pp, return_inverse=True)
        self.profiles = padded_profiles(self.graph.layers, len(self.graph.blocks), pps, self.stages)
        self.activations = self._activations(points)
        self.batch_tokens = points.batch * self.workload.tokens_per_sequence
        in_flight = points.replicas * points.batch
        if self.workload.concurrency is not None:
            in_flight = np.minimum(in_flight, self.workload.concurrency)
        self.tokens_in_flight = in_flight * self.workload.tokens_per_sequence

    def _tables(
        self, points: Points, lengths: Lengths, *, priced: bool
    ) -> tuple[tuple[Variable, ...], dict[str, Component]]:
        return build_tables(
            self.graph,
            self.cluster,
            self.workload,
            points,
            self.pinned,
            lengths=lengths,
            engine=self.engine,
            formats=self.formats,
            priced=priced,
            uneven=self.uneven,
            wider=self.wider,
        )

    def _activations(self, points: Points) -> FloatArray:
        """Bytes of activations of the largest pass: when serving, a chunk of prompts and the decode step."""
        tokens = self.workload.tokens_per_sequence
        found = activation_bytes(self.graph, Amounts.of(self.graph, points, tokens_per_sequence=tokens))
        if self.engine is None:
            return found
        chunk = chunk_lengths(self.workload, self.engine.chunk_tokens)
        amounts = Amounts.of(
            self.graph, points, tokens_per_sequence=chunk.tokens, sequences_per_rank=chunk.sequences
        )  # fmt: skip
        return found + activation_bytes(self.graph, amounts)

    @property
    def capacity_bytes(self) -> float:
        """Usable memory of one device."""
        return self.cluster.device.memory_bytes

    @property
    def limit_s(self) -> float | None:
        """Limit on the step: TPOT in decode, TTFT in prefill, none when serving (`limited` has both)."""
        return self.objective.limit_s

    @property
    def limits(self) -> tuple[Measure, ...]:
        """Measures besides the step that have a limit."""
        return tuple(m for m in self.limited if m.limit_s is not None)

    def measure_s(self, measure: Measure, point: IntArray, dims: IntArray) -> FloatArray:
        """Seconds of a measure for strategies ``(point [m], dims [m, variables])``."""
        part_s = np.stack([c.seconds(point, dims) for c in measure.parts], 1)
        return self.stages_s(measure, point, part_s, dims[:, 0])

    def stages_s(self, measure: Measure, point: IntArray, part_s: FloatArray, residual: int | IntArray) -> FloatArray:
        """Seconds of a measure from those of its parts ``[m, parts]``: pp times the slowest stage and its hand-over."""
        stages = (self.profiles_of(point) * part_s[:, None, :]).sum(-1).max(1)
        found: FloatArray = self.points.pp[point] * (stages + measure.send_s[point, residual])
        return found

    def profiles_of(self, point: IntArray) -> FloatArray:
        """Stage profiles ``[m, profiles, parts]`` of points."""
        found: FloatArray = self.profiles[self._pp_index[point]]
        return found

    def fixed_bytes(self, point: IntArray) -> FloatArray:
        """Bytes that no choice changes: activations and workspace ([m])."""
        found: FloatArray = self.activations[point] + WORKSPACE_BYTES
        return found

    def step_s(self, point: IntArray, part_s: FloatArray, residual: int | IntArray) -> FloatArray:
        """``pp`` times the slowest stage and its hand-over, from the seconds of every part ``[m, parts]``.

        ``residual`` is the option of the residual's layout, the first variable.
        """
        return self.stages_s(self.objective, point, part_s, residual)

    def held_bytes(self, point: IntArray, part_bytes: FloatArray) -> FloatArray:
        """Weights and KV of the fullest stage, from the bytes of every part ``[m, parts]``."""
        found: FloatArray = (self.profiles_of(point) * part_bytes[:, None, :]).sum(-1).max(1)
        return found

    def throughput(self, point: IntArray, step_s: FloatArray) -> FloatArray:
        """Tokens/s of the whole cluster."""
        found: FloatArray = self.tokens_in_flight[point] / step_s
        return found

    def evaluate(self, point: IntArray, dims: IntArray) -> Evaluation:
        """Predict strategies: ``point`` [m] indexes points, ``dims`` [m, variables] options."""
        seconds = np.stack([c.seconds(point, dims) for c in self.parts], 1)
        held = [c.num_bytes(point, dims) for c in self.parts]
        weights = np.stack([w for w, _ in held], 1)
        kv = np.stack([k for _, k in held], 1)
        effects = self.effects
        step_s = self.step_s(point, seconds, dims[:, 0]) if effects is None else effects.step_s(point, dims)
        profiles = self.profiles_of(point)
        by_stage = (profiles * (weights + kv)[:, None, :]).sum(-1)
        fullest = by_stage.argmax(1)
        rows = np.arange(len(point))
        weights_bytes = (profiles * weights[:, None, :]).sum(-1)[rows, fullest]
        kv_bytes = by_stage[rows, fullest] - weights_bytes
        total = by_stage[rows, fullest] + self.fixed_bytes(point)
        violation = np.maximum(total / self.capacity_bytes - 1.0, 0.0)
        illegal = step_s >= ILLEGAL_S
        for i, variable in enumerate(self.variables):
            illegal |= ~variable.legal[point, dims[:, i]]
        if self.limit_s is not None:
            violation = violation + np.maximum(np.where(illegal, 0.0, step_s) / self.limit_s - 1.0, 0.0)
        for measure in self.limits:
            assert measure.limit_s is not None
            seconds = np.where(illegal, 0.0, self.measure_s(measure, point, dims))
            violation = violation + np.maximum(seconds / measure.limit_s - 1.0, 0.0)
        violation = violation + illegal
        rate = np.where(violation > 0, 0.0, self.throughput(point, step_s))
        return Evaluation(
            step_s=step_s,
            tokens_per_s=rate,
            weights_bytes=weights_bytes,
            kv_bytes=kv_bytes,
            activation_bytes=self.activations[point],
            violation=violation,
        )

    def with_parts(self, parts: tuple[Component, ...]) -> "Simulator":
        """The same points and memory at the additive costs of other parts, without effects."""
        twin = copy.copy(self)
        twin.objective, twin.parts, twin.effects = replace(self.objective, parts=parts), parts, None
        return twin

    def strategy(self, point: int, dims: Sequence[int]) -> Strategy:
        """The strategy at a point with the given options."""
        chosen = tuple((v.key, v.choices[int(o)]) for v, o in zip(self.variables, dims, strict=True))
        degrees = self.points.degrees(point)
        stages = self.stages if len(self.stages) == degrees.pp else ()
        return Strategy(degrees=degrees, choices=chosen, stages=stages, uneven=self.uneven)

    def minimum_bytes(self) -> FloatArray:
        """Least bytes of any legal strategy at every point ([points])."""
        n = len(self.points)
        least = np.zeros((n, len(self.parts)))
        for j, part in enumerate(self.parts):
            tables: dict[int, FloatArray] = {}
            for v, table in (*part.weights, *part.kv):
                tables[v] = tables.get(v, 0.0) + table
            for v, table in tables.items():
                least[:, j] += np.where(self.variables[v].legal, table, ILLEGAL_BYTES).min(1)
        everything = np.arange(n)
        return self.held_bytes(everything, least) + self.fixed_bytes(everything)
