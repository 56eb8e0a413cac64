"""Bytes and seconds of going from one layout to another over the same devices: weights, and the caches of requests.

Devices are numbered replica by replica, stage by stage, as everywhere. A rank receives what the new layout gives it and
the old one did not: of each parameter the box that it will hold less the part of it that it holds, of each cache its
share of requests, kv heads and layers likewise (requests are dealt to dp ranks in order). Copies in the old layout
share the sending evenly. The slowest rank decides, in or out, and everything crosses the slowest link of the cluster;
no rank is renumbered to have less to move, and moving overlaps with nothing.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autoshard.cost import collective_s
from autoshard.hardware import Cluster
from autoshard.ir import Attention, ExpertsLinear, FusedOp, Indexer, LatentAttention, Linear, Mixer, Opaque, OpGraph
from autoshard.sharding.legality import chosen_options, mesh_of
from autoshard.sharding.option import Option
from autoshard.sharding.placements import ParamPlacement, place
from autoshard.sharding.stages import layers_per_stage
from autoshard.sharding.strategy import Strategy
from autoshard.simulator.work import element_bytes
from autoshard.units import dtype_bytes
from autoshard.workload import Workload

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
Box = dict[int, tuple[FloatArray, FloatArray]]
"""Per dim that is split, where a rank's part begins and ends, as shares of the whole ``[ranks]``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """What the busiest rank receives, and sends, in bytes, and the seconds of the slower of both."""

    received_bytes: float
    sent_bytes: float
    seconds: float


class _Layout:
    """Where every device of a cluster is in a strategy's mesh, and what it holds."""

    def __init__(self, graph: OpGraph, strategy: Strategy, num_devices: int) -> None:
        self.graph, self.strategy, self.mesh = graph, strategy, mesh_of(graph, strategy.degrees)
        d = strategy.degrees
        rank = np.arange(num_devices)
        self.used = rank < d.num_devices * d.replicas
        self.replica, inside = rank // d.num_devices, rank % d.num_devices
        self.stage, self._place = inside // d.group, inside % d.group
        self.chosen = {b.name: chosen_options(graph, b, strategy) for b in graph.components()}
        counts = layers_per_stage(graph, strategy)
        self.stage_of_layer = np.repeat(np.arange(d.pp), counts)

    def coordinate(self, axis: str) -> IntArray:
        """Coordinate of every device on an axis of its stage's mesh."""
        sizes = [size for _, size in self.mesh.dims]
        at = dict(zip((name for name, _ in self.mesh.dims), np.unravel_index(self._place, sizes), strict=True))
        found = np.zeros(len(self._place), dtype=np.int64)
        for name in self.mesh.view(axis):  # type: ignore[arg-type]
            found = found * dict(self.mesh.dims)[name] + at[name]
        return found

    def part(self, axis: str | None) -> tuple[FloatArray, FloatArray]:
        """Every device's part of what is split over an axis, whole without one."""
        size = 1 if axis is None else self.mesh.size(axis)  # type: ignore[arg-type]
        at = np.zeros(len(self._place)) if axis is None else self.coordinate(axis)
        return at / size, (at + 1) / size

    def box(self, placed: ParamPlacement) -> Box:
        """Every device's box of a parameter."""
        found: Box = {}
        for axis, p in zip(placed.mesh_dims, placed.placements, strict=True):
            if p.kind == "shard":
                begin, end = found.get(p.dim, (np.zeros(len(self._place)), np.ones(len(self._place))))
                low, high = self.part(axis)
                found[p.dim] = begin + (end - begin) * low, begin + (end - begin) * high
        return found

    def holders(self, placed: ParamPlacement) -> NDArray[np.bool_]:
        """Devices that have a part of a parameter of a layer of their stage."""
        if placed.held_by is None:
            return self.used
        axis, coordinate = placed.held_by
        found: NDArray[np.bool_] = self.used & (self.coordinate(axis) == coordinate)
        return found

    def stages(self, block: str) -> IntArray:
        """The stage of every repeat of a block."""
        graph = self.graph
        if block == graph.prologue.name:
            return np.array([0])
        if block == graph.epilogue.name:
            return np.array([self.strategy.degrees.pp - 1])
        kind = next(i for i, b in enumerate(graph.blocks) if b.name == block)
        found: IntArray = self.stage_of_layer[np.array(graph.layers) == kind]
        return found

    def requests(self) -> tuple[FloatArray, FloatArray]:
        """Every device's share of the requests in flight."""
        d = self.strategy.degrees
        at, ranks = self.replica * d.dp + self.coordinate("dp"), d.replicas * d.dp
        return at / ranks, (at + 1) / ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class _Held:
    """Something every repeat of a block has: its whole bytes, and each device's share of it before and after."""

    block: str
    num_bytes: float
    before: Box
    after: Box
    had_by: NDArray[np.bool_]
    needed_by: NDArray[np.bool_]


def move_weights(graph: OpGraph, cluster: Cluster, workload: Workload, old: Strategy, new: Strategy) -> Move:
    """Move all parameters from one layout to another."""
    before, after = (_Layout(graph, s, cluster.num_devices) for s in (old, new))
    return _move(cluster, before, after, list(_parameters(graph, workload, before, after)))


def move_caches(
    graph: OpGraph, cluster: Cluster, workload: Workload, old: Strategy, new: Strategy, *, requests: int, tokens: int
) -> Move:
    """Move the caches of ``requests`` requests of ``tokens`` tokens each, and the states of mixers."""
    before, after = (_Layout(graph, s, cluster.num_devices) for s in (old, new))
    held = []
    for block, op in graph.all_ops():
        size = _cache_bytes(op, workload, tokens)
        if size:
            boxes = [
                {0: each.part(_cache_axis(op, each.chosen[block.name].get(op.name))), 1: each.requests()}
                for each in (before, after)
            ]
            held.append(
                _Held(
                    block=block.name,
                    num_bytes=requests * size,
                    before=boxes[0],
                    after=boxes[1],
                    had_by=before.used,
                    needed_by=after.used,
                )
            )
    return _move(cluster, before, after, held)


def _parameters(graph: OpGraph, workload: Workload, before: _Layout, after: _Layout) -> Iterator[_Held]:
    for block, op in graph.all_ops():
        experts = isinstance(op, ExpertsLinear)
        quantised = isinstance(op, Linear | ExpertsLinear) and not getattr(op, "is_head", False)
        for i, param in enumerate(op.params):
            places = [
                place(param, i, each.chosen[block.name].get(op.name), each.mesh, experts=experts)
                for each in (before, after)
            ]
            # A tied head is the embedding itself, unless it is on another stage.
            own = [param.shared_with is None or each.strategy.degrees.pp > 1 for each in (before, after)]
            yield _Held(
                block=block.name,
                num_bytes=param.numel * element_bytes(workload, param, quantised=quantised),
                before=before.box(places[0]),
                after=after.box(places[1]),
                had_by=before.holders(places[0]) & own[0],
                needed_by=after.holders(places[1]) & own[1],
            )


def _cache_bytes(op: FusedOp, workload: Workload, tokens: int) -> float:
    """Bytes that one request of so many tokens keeps in one layer, in all."""
    element = dtype_bytes(workload.kv_dtype)
    if isinstance(op, Mixer):
        return float(op.state_bytes)
    if isinstance(op, Opaque):
        return float(op.state_bytes + op.cache_bytes_per_token * tokens)
    if not isinstance(op, Attention | LatentAttention | Indexer):
        return 0.0
    window = None if isinstance(op, Indexer) else op.window
    seen = tokens if window is None else min(tokens, window)
    pooled = op.pooled_elements_per_token * tokens if isinstance(op, Attention) else 0.0
    return (seen * op.kv_elements_per_token + pooled) * element


def _cache_axis(op: FusedOp, option: Option | None) -> str | None:
    """The axis over which a cache is split; None where every rank has all of it."""
    if isinstance(op, Mixer):
        return None if option is None else option.split_out
    return "tp_kv" if isinstance(op, Attention) and option is not None and option.choice == 0 else None


def _move(cluster: Cluster, before: _Layout, after: _Layout, held: list[_Held]) -> Move:
    n = cluster.num_devices
    received, sent = np.zeros(n), np.zeros(n)
    for each in held:
        old, new = before.stages(each.block), after.stages(each.block)
        repeats = max(before.strategy.degrees.pp, after.strategy.degrees.pp)
        joint = np.zeros((repeats, repeats))
        np.add.at(joint, (old, new), 1.0)
        had = joint.sum(1)[before.stage] * _volume(each.before, n) * each.had_by
        needed = joint.sum(0)[after.stage] * _volume(each.after, n) * each.needed_by
        kept = joint[before.stage, after.stage] * _overlap(each.before, each.after, n) * each.had_by * each.needed_by
        missing = each.num_bytes * (needed - kept)
        received += missing
        if had.any():
            sent += missing.sum() * had / had.sum()
    most = max(float(received.max()), float(sent.max()))
    in_node = 1 if cluster.num_nodes > 1 else 2
    seconds = float(collective_s("send_recv", most, 2, in_node, cluster.intra, cluster.inter))
    return Move(received_bytes=float(received.max()), sent_bytes=float(sent.max()), seconds=seconds)


def _volume(box: Box, n: int) -> FloatArray:
    return math.prod(((end - begin) for begin, end in box.values()), start=np.ones(n))


def _overlap(a: Box, b: Box, n: int) -> FloatArray:
    whole = np.zeros(n), np.ones(n)
    found = np.ones(n)
    for dim in {*a, *b}:
        (begin, end), (first, last) = a.get(dim, whole), b.get(dim, whole)
        found = found * np.maximum(np.minimum(end, last) - np.maximum(begin, first), 0.0)
    return found
