"""Builds the variables and factor tables of a model on a cluster: one factor per op, one per tensor between ops.

The steps of a tensor come from `autoshard.sharding.flow.tensor_moves`, the function that plans and ranks use, so what
is charged is what runs. Points are grouped by the pattern of their degrees, since only that changes which steps there
are; the price of a step is then one vector over points, and is reused wherever the step occurs.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import cast

import numpy as np
from numpy.typing import NDArray

from autoshard.cost import Kernels, ServingLaw, collective_s
from autoshard.cost.formats import MODEL_FORMATS, Formats
from autoshard.hardware import Cluster, CollectiveKind
from autoshard.ir import BLOCK_INPUT, Block, FusedOp, OpGraph
from autoshard.sharding.layout import INDEX_BYTES, Layout, S, Step, own_tokens
from autoshard.sharding.legality import choice_key, choice_keys, expert_counts, model_choices, residual_needed
from autoshard.sharding.moe import StagePattern
from autoshard.sharding.option import Choice, Option
from autoshard.sharding.space import consumers, option_axis, options, tensor_rows
from autoshard.sharding.stages import residual_width
from autoshard.sharding.strategy import DISPATCH, RESIDUAL, RESIDUAL_LAYOUTS
from autoshard.sharding.wider import option_under
from autoshard.simulator.amounts import Amounts
from autoshard.simulator.exchange import exchange_s
from autoshard.simulator.launches import joins_experts, merged_products
from autoshard.simulator.lengths import Lengths, own_lengths
from autoshard.simulator.moves import Ends, TensorMoves, is_head
from autoshard.simulator.points import Points, distinct
from autoshard.simulator.variables import ILLEGAL_S, Component, Factor, Variable
from autoshard.simulator.work import ACTIVATION_BYTES, WorkModel
from autoshard.workload import Workload

FloatArray = NDArray[np.float64]
ENGINE_ALL_REDUCE = "vllm_graph"
"""Inside a node an all_reduce is the library's or this one's, whichever is faster for the size, as engines choose."""


class TableBuilder:
    """Prices every op and tensor of a graph; see `build_tables`."""

    def __init__(
        self,
        graph: OpGraph,
        cluster: Cluster,
        workload: Workload,
        points: Points,
        pinned: Mapping[str, Choice],
        lengths: Lengths,
        engine: ServingLaw | None = None,
        formats: Formats = MODEL_FORMATS,
        uneven: bool = False,
        *,
        wider: tuple[str, ...] = (),
        skew: float | None = None,
    ) -> None:
        """``skew`` is that of the popularity of experts; by default the engine's, or even choices."""
        self.wider = wider
        if skew is None:
            skew = 0.0 if engine is None else engine.routing_skew
        self.graph, self.cluster, self.workload, self.points = graph, cluster, workload, points
        self.lengths, self.engine, self.uneven = lengths, engine, uneven
        self.kernels = Kernels(
            device=cluster.device,
            dtype=workload.dtype,
            kv_dtype=workload.kv_dtype,
            engine=None if engine is None else engine.kernels,
            dense=formats.dense,
            experts=formats.experts,
        )
        self._pinned = pinned
        self._step_s: dict[tuple[Step, bool], FloatArray] = {}
        self._amounts = {
            last: Amounts.of(
                self.graph,
                self.points,
                tokens_per_sequence=1 if last else self.lengths.tokens,
                sequences_per_rank=self.lengths.sequences,
                skew=skew,
            )
            for last in (False, True)
        }
        self.variables = tuple(self._variable(key) for key in choice_keys(self.graph))
        self._index = {v.key: i for i, v in enumerate(self.variables)}
        first, of = distinct(points.dp, points.ep, points.etp)
        patterns = [StagePattern.of(int(points.dp[i]), int(points.ep[i]), int(points.etp[i])) for i in first]
        known = list(dict.fromkeys(patterns))
        number = np.array([known.index(p) for p in patterns])[of]
        self._groups = {p: np.flatnonzero(number == i) for i, p in enumerate(known)}

    def _owner(self, key: str) -> tuple[Block, FusedOp]:
        return next((b, op) for b, op in self.graph.all_ops() if f"{b.name}/{op.name}" == key)

    def _variable(self, key: str) -> Variable:
        sizes, n = self.points.sizes, len(self.points)
        if key in (RESIDUAL, DISPATCH):
            first, of = distinct(sizes["tp"], sizes["ep"], self.points.pp)
            offered = [
                model_choices(
                    self.graph, {"tp": int(sizes["tp"][i]), "ep": int(sizes["ep"][i])}, pp=int(self.points.pp[i])
                )[key]
                for i in first
            ]
            legal = np.array([[why is None for why in o.values()] for o in offered])[of]
            return self._with_pin(key, tuple(offered[0]), legal, (None,) * len(offered[0]))
        block, op = self._owner(key)
        listed = options(block, op, self.wider)
        legal = np.ones((n, len(listed)), dtype=bool)
        for i, option in enumerate(listed):
            axis = option_axis(option)
            if axis is not None:
                legal[:, i] &= sizes[axis] > 1
            legal[:, i] &= self._divides(option)
        needs = tuple(residual_needed(op, o) for o in listed)
        return self._with_pin(key, tuple(o.choice for o in listed), legal, needs)

    def _divides(self, option: Option) -> NDArray[np.bool_]:
        """Where every width that an option splits divides, or may be filled up."""
        overs = sorted({over for _, over, _ in option.divides})
        if not overs:
            return np.ones(len(self.points), dtype=bool)
        sizes = {over: self.points.sizes[over] for over in overs}
        first, of = distinct(*sizes.values())
        fine = [
            option.undivided({over: int(size[i]) for over, size in sizes.items()}, uneven=self.uneven) is None
            for i in first
        ]
        return np.array(fine)[of]

    def _with_pin(
        self, key: str, choices: tuple[Choice, ...], legal: NDArray[np.bool_], needs: tuple[Layout | None, ...]
    ) -> Variable:
        if key in self._pinned:
            legal = legal & np.array([c == self._pinned[key] for c in choices])
        return Variable(key=key, choices=choices, legal=legal, needs_residual=needs)

    def step_s(self, step: Step, *, last: bool) -> FloatArray:
        """Seconds of a step at every point; slices and axes of size one are free."""
        known = self._step_s.get((step, last))
        if known is not None:
            return known
        if step.kind == "slice":
            found = np.zeros(len(self.points))
        elif step.kind == "all_to_all" and step.rows in ("counts", "sent", "arrived"):
            found = self._exchange_s(step, self._amounts[last])
        else:
            amounts = self._amounts[last]
            found = collective_s(
                cast(CollectiveKind, step.kind),
                amounts.step_bytes(step, self.points, ACTIVATION_BYTES),
                self.points.sizes[step.axis],
                self.points.in_node[step.axis],
                self.cluster.intra,
                self.cluster.inter,
                engine=ENGINE_ALL_REDUCE if self.engine is None else self.engine.all_reduce,
            )
        self._step_s[step, last] = found
        return found

    def _exchange_s(self, step: Step, amounts: Amounts) -> FloatArray:
        """Seconds of an all_to_all of (token, expert) rows, that of their counts included, which is free by itself."""
        if step.rows == "counts":
            return np.zeros(len(self.points))
        experts = expert_counts(self.graph)[0] if step.rows == "sent" else 0
        return exchange_s(
            self.cluster,
            "dispatch" if step.rows == "sent" else "combine",
            own_tokens(amounts.tokens, self.points.sizes),
            amounts.step_bytes(step, self.points, ACTIVATION_BYTES),
            amounts.top_k,
            experts * INDEX_BYTES,
            self.points.sizes[step.axis],
            self.points.in_node[step.axis],
        )

    def work(self, block: Block) -> WorkModel:
        """What prices the computation of a block's ops."""
        return WorkModel(
            kernels=self.kernels,
            workload=self.workload,
            lengths=self.lengths,
            points=self.points,
            amounts=self._amounts[block is self.graph.epilogue],
            merged=merged_products(block) if self.kernels.merges else {},
        )

    def component(self, block: Block, *, priced: bool = True) -> Component:
        """Factors and bytes of one block; without factors unless ``priced``."""
        last, work = block is self.graph.epilogue, self.work(block)
        factors: list[Factor] = []
        weights: dict[int, FloatArray] = {}
        kv: dict[int, FloatArray] = {}
        for op in block.ops:
            v, listed = self._listed(block, op)
            if priced:
                factors += self._op_factors(op, v, listed, work, last=last)
            if not listed:
                continue
            at = self._index[RESIDUAL] if v is None else v
            width = len(self.variables[at].choices)
            for held, of in ((weights, work.weight_bytes), (kv, work.kv_bytes)):
                table = np.stack([of(op, o) for o in listed], 1)
                if table.any():
                    held[at] = held.get(at, np.zeros(1)) + np.broadcast_to(table, (len(table), width))
        for producer in (None, *block.ops) if priced else ():
            factor = self._tensor_factor(block, producer, last=last)
            if factor is not None:
                factors.append(factor)
        if priced and last and self.engine is not None and self.lengths.phase == "decode":
            # The engine's host: once a step, on the last stage, which samples.
            seconds = self.engine.host_s(self._amounts[True].sequences)
            factors.append(Factor(variables=(), table=seconds, label="engine", what="host"))
        return Component(name=block.name, factors=tuple(factors), weights=tuple(weights.items()), kv=tuple(kv.items()))

    def compute(self, block: Block, op: FusedOp) -> Factor:
        """Seconds of an op's own computation, over its choice (if it has one)."""
        return self._compute(op, *self._listed(block, op), self.work(block))

    def _listed(self, block: Block, op: FusedOp) -> tuple[int | None, list[Option]]:
        """The variable that decides an op and the option it takes under each of its choices; None and all it has."""
        v = self._index.get(choice_key(self.graph, block, op))
        offered = options(block, op, self.wider)
        if v is None:
            return None, list(offered)
        return v, [option_under(op, offered, c) for c in self.variables[v].choices]

    @staticmethod
    def _compute(op: FusedOp, v: int | None, listed: Sequence[Option], work: WorkModel) -> Factor:
        if v is None:
            seconds = work.seconds(op, listed[0] if listed else None)
            return Factor(variables=(), table=seconds, label=op.name, what=op.kind)
        table = np.stack([work.seconds(op, o) for o in listed], 1)
        return Factor(variables=(v,), table=table, label=op.name, what=op.kind)

    def _op_factors(
        self, op: FusedOp, v: int | None, listed: Sequence[Option], work: WorkModel, *, last: bool
    ) -> list[Factor]:
        """Seconds of an op's own computation and internal collectives, over its choice (if it has one)."""
        found = [self._compute(op, v, listed, work)]
        if v is None:
            return found
        inside = np.stack([self._steps_s(o.internal, last=last) for o in listed], 1)
        if inside.any():
            found.append(Factor(variables=(v,), table=inside, label=op.name, what="collective"))
        return found

    def _steps_s(self, steps: tuple[Step, ...], *, last: bool) -> FloatArray:
        total = np.zeros(len(self.points))
        for step in steps:
            total = total + self.step_s(step, last=last)
        return total

    def _tensor_factor(self, block: Block, producer: FusedOp | None, *, last: bool) -> Factor | None:
        """Seconds of all moves of one tensor, over the choices of its producer and readers.

        Choices differ here only in the layouts they yield and need, so the table is over classes of those.
        """
        name = BLOCK_INPUT if producer is None else producer.name
        readers = [(op, i) for op, i in consumers(block, name) if op.kind != "embedding"]
        if not readers and producer is None:
            return None
        moves = TensorMoves(self.graph, block, producer, readers, self.variables, self.wider)
        found = moves.decided_by
        if DISPATCH in self._index and any(tensor_rows(op) == "pairs" for op in moves.ops):
            found.add(self._index[DISPATCH])
        if not readers and not is_head(producer):
            found.add(self._index[RESIDUAL])
        order = tuple(sorted(found))
        classes = tuple(moves.classes(v) for v in order)
        shape = tuple(max(each) + 1 for each in classes)
        columns: dict[Ends | None, list[int]] = {}
        for column, cell in enumerate(itertools.product(*(range(n) for n in shape))):
            chosen = {v: each.index(c) for v, each, c in zip(order, classes, cell, strict=True)}
            columns.setdefault(moves.ends(chosen), []).append(column)
        flat = np.empty((math.prod(shape), len(self.points)))
        for ends, same in columns.items():
            flat[same] = self._moves_s(moves, ends, last=last, joins=joins_experts(block, producer))
        if not flat.any():
            return None
        table = np.moveaxis(flat.reshape(*shape, len(self.points)), -1, 0)
        return Factor(variables=order, table=table, label=name, what="collective", classes=classes, moves=True)

    def _moves_s(self, moves: TensorMoves, ends: Ends | None, *, last: bool, joins: bool) -> FloatArray:
        """Seconds of a tensor's moves at every point, `ILLEGAL_S` where no rule allows them."""
        total = np.full(len(self.points), ILLEGAL_S)
        for pattern, index in self._groups.items():
            steps = None if ends is None else moves.steps(ends, pattern)
            if steps is None:
                continue
            found = np.zeros(len(index))
            for step in steps:
                seconds = self.step_s(step, last=last)[index]
                if joins and self.engine is not None and step.kind == "all_reduce":
                    # At dp = 1 an engine adds the experts' shares up with those of the shared ones.
                    seconds = np.where(self.points.dp[index] == 1, 0.0, seconds)
                found += seconds
            total[index] = found
        return total

    def send(self) -> Component:
        """The hand-over of one microbatch to the next stage: the residual in its layout, device to device."""
        whole = self._amounts[False].tokens * residual_width(self.graph) * ACTIVATION_BYTES
        layouts = [RESIDUAL_LAYOUTS[c] for c in self.variables[self._index[RESIDUAL]].choices]
        num_bytes = np.stack([whole / self.points.sizes["tp"] if x is S else whole for x in layouts], 1)
        many = self.points.pp > 1
        # The step waits for the slowest hand-over: only a replica that lies in one node has none between nodes.
        replica, per_node = self.points.pp * self.points.group, self.cluster.devices_per_node
        close = (replica <= per_node) & (per_node % np.minimum(replica, per_node) == 0)
        seconds = collective_s(
            "send_recv",
            num_bytes,
            np.where(many, 2, 1)[:, None],
            np.where(many & close, 2, 1)[:, None],
            self.cluster.intra,
            self.cluster.inter,
        )
        return Component(
            name="send",
            factors=(Factor(variables=(self._index[RESIDUAL],), table=seconds, label="stage", what="send_recv"),),
            weights=(),
            kv=(),
        )


def build_tables(
    graph: OpGraph,
    cluster: Cluster,
    workload: Workload,
    points: Points,
    pinned: Mapping[str, Choice],
    *,
    lengths: Lengths | None = None,
    engine: ServingLaw | None = None,
    formats: Formats = MODEL_FORMATS,
    priced: bool = True,
    uneven: bool = False,
    wider: tuple[str, ...] = (),
) -> tuple[tuple[Variable, ...], dict[str, Component]]:
    """Variables (the residual first, then ops in graph order) and components by block name, plus ``"send"``.

    A pinned variable keeps its options, but only the pinned one is legal. Without ``priced`` components hold bytes
    but no seconds, which is all that the choice of points needs. ``lengths`` says which pass is priced (the workload's
    own by default), ``engine`` whose kernels and host, ``formats`` how it stores weights.
    With ``uneven`` heads and widths that do not divide may be filled up; ``wider`` are parts of the wider space.
    """
    lengths = lengths or own_lengths(workload)
    builder = TableBuilder(graph, cluster, workload, points, pinned, lengths, engine, formats, uneven, wider=wider)
    components = {block.name: builder.component(block, priced=priced) for block in graph.components()}
    components["send"] = builder.send()
    return builder.variables, components
