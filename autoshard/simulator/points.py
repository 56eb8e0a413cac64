"""The degree points of a model on a cluster: every legal (group, pp, tp, ep, sequences), as arrays.

Degrees are any divisors. ``group * pp`` divides the cluster, unless the user pinned degrees that do not: then the rest
idles, and the objective still counts it. ``sequences`` (of one microbatch on one dp rank) runs over a geometric grid
of four values an octave up to `LARGEST_SEQUENCES`, so that the batch ``sequences * dp * pp`` is always whole.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autoshard.errors import InvalidInputError
from autoshard.hardware import Cluster
from autoshard.ir import OpGraph
from autoshard.sharding.degrees import Degrees
from autoshard.sharding.legality import Reason, attention_heads, axis_sizes, degree_reasons, expert_counts, mesh_of

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

DEGREE_COMPONENTS = ("group", "pp", "tp", "ep", "batch")
PINNABLE = ("pp", "dp", "tp", "ep", "etp", "batch", "replicas")
LARGEST_PIN = 10**9
LARGEST_SEQUENCES = 1024
"""Sequences of one microbatch on one dp rank that are searched at most; a fixed batch may be larger."""


def divisors(n: int) -> list[int]:
    """Divisors of ``n`` in order."""
    small = [d for d in range(1, int(n**0.5) + 1) if n % d == 0]
    return sorted({*small, *(n // d for d in small)})


def sequence_grid(largest: int) -> list[int]:
    """1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, ...: four values an octave up to ``largest``."""
    grid, octave = [1, 2, 3], 4
    while octave <= largest:
        grid += [octave + i * (octave // 4) for i in range(4)]
        octave *= 2
    return [v for v in grid if v <= largest]


def distinct(*columns: IntArray) -> tuple[IntArray, IntArray]:
    """The first row of every combination that columns of numbers from 0 have, and each row's combination."""
    key = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        key = key * (int(column.max(initial=0)) + 1) + column
    _, first, inverse = np.unique(key, return_index=True, return_inverse=True)
    return first, inverse.reshape(-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageGroup:
    """Structural degrees with their axis sizes and how many ranks of each axis' group share a node."""

    pp: int
    dp: int
    tp: int
    ep: int
    etp: int
    sizes: Mapping[str, int]
    in_node: Mapping[str, int]


def ranks_in_node(size: int, stride: int, num_devices: int, per_node: int) -> int:
    """Most ranks of one group that share a node, in the worst-placed group.

    Groups are ``base + i * stride`` for ``i < size``; device ``r`` is on node ``r // per_node``.
    """
    if size == 1:
        return 1
    base = np.arange(num_devices // (size * stride))[:, None] * size * stride + np.arange(stride)[None, :]
    place = np.unique(base % per_node)  # where in its node a group begins decides all the rest
    nodes = (place[:, None] + np.arange(size) * stride) // per_node
    return min(int(np.bincount(row).max()) for row in nodes)


def stage_groups(
    graph: OpGraph, cluster: Cluster, fixed: Mapping[str, int] | None = None, *, uneven: bool = False
) -> tuple[list[StageGroup], list[Reason]]:
    """Every legal (pp, dp, tp, ep) of a model on a cluster under pinned degrees, and the rules that excluded others."""
    fixed = dict(fixed or {})
    n = cluster.num_devices
    tp_ok = [t for t in divisors(n) if uneven or all(h % t == 0 for h, _ in attention_heads(graph))]
    tps = [fixed["tp"]] if "tp" in fixed else tp_ok
    dps = [fixed["dp"]] if "dp" in fixed else divisors(n)
    pps = [fixed["pp"]] if "pp" in fixed else [p for p in divisors(n) if p <= len(graph.layers)]
    pinned = bool({"pp", "dp", "tp", "ep", "etp", "replicas"} & set(fixed))
    cache: dict[tuple[int, int, int], int] = {}
    found: list[StageGroup] = []
    reasons: dict[str, Reason] = {}
    for pp in pps:
        for tp in tps:
            for dp in dps:
                group = dp * tp
                if pp * group > n or (not pinned and n % (pp * group)):
                    continue
                if "replicas" in fixed and fixed["replicas"] * pp * group > n:
                    continue
                for ep in _expert_degrees(graph, fixed, dp, group):
                    why = degree_reasons(graph, pp=pp, dp=dp, tp=tp, ep=ep, uneven=uneven)
                    if not why and dp % ep and ep % dp:
                        continue
                    if why:
                        for reason in why:
                            reasons.setdefault(reason.message, reason)
                        continue
                    found.append(_stage_group(graph, cluster, pp, dp, tp, ep, cache))
    return found, list(reasons.values())


def _expert_degrees(graph: OpGraph, fixed: Mapping[str, int], dp: int, group: int) -> list[int]:
    if not expert_counts(graph):
        return [fixed.get("ep", dp)] if fixed.get("etp", group // dp) == group // dp else []
    eps = [fixed["ep"]] if "ep" in fixed else divisors(group)
    return [
        e for e in eps if group % e == 0 and (dp % e == 0 or e % dp == 0) and fixed.get("etp", group // e) == group // e
    ]


def _stage_group(
    graph: OpGraph, cluster: Cluster, pp: int, dp: int, tp: int, ep: int, cache: dict[tuple[int, int, int], int]
) -> StageGroup:
    group = dp * tp
    degrees = Degrees(pp=pp, dp=dp, tp=tp, ep=ep, etp=group // ep, batch=dp)
    mesh = mesh_of(graph, degrees)
    used = cluster.num_devices // (pp * group) * pp * group
    strides: dict[str, int] = {}
    stride = 1
    for name, size in reversed(mesh.dims):
        strides[name] = stride
        stride *= size
    in_node: dict[str, int] = {}
    for axis, names in mesh.views:
        key = (mesh.size(axis), strides[names[-1]] if names else 1, used)
        if key not in cache:
            cache[key] = ranks_in_node(*key, cluster.devices_per_node)
        in_node[axis] = cache[key]
    return StageGroup(pp=pp, dp=dp, tp=tp, ep=ep, etp=group // ep, sizes=axis_sizes(mesh), in_node=in_node)


@dataclass(frozen=True, slots=True, kw_only=True)
class Points:
    """Degree points as arrays of length n (all int64).

    ``sequences`` per microbatch and dp rank, ``microbatches`` in flight, ``batch`` = sequences * dp * microbatches.
    ``sizes`` / ``in_node`` map an axis to its size and to the ranks of a group that share a node.
    """

    pp: IntArray
    dp: IntArray
    tp: IntArray
    ep: IntArray
    etp: IntArray
    sequences: IntArray
    microbatches: IntArray
    replicas: IntArray
    sizes: Mapping[str, IntArray]
    in_node: Mapping[str, IntArray]

    def __len__(self) -> int:
        return len(self.pp)

    @property
    def group(self) -> IntArray:
        """Devices of a stage."""
        return self.dp * self.tp

    @property
    def batch(self) -> IntArray:
        """Sequences in flight per replica."""
        return self.sequences * self.dp * self.microbatches

    def take(self, index: IntArray | BoolArray) -> "Points":
        """The points at ``index``."""
        return Points(
            **{n: getattr(self, n)[index] for n in _ARRAYS},
            sizes={k: v[index] for k, v in self.sizes.items()},
            in_node={k: v[index] for k, v in self.in_node.items()},
        )

    def degrees(self, i: int) -> Degrees:
        """Degrees of point ``i``."""
        return Degrees(
            pp=int(self.pp[i]),
            dp=int(self.dp[i]),
            tp=int(self.tp[i]),
            ep=int(self.ep[i]),
            etp=int(self.etp[i]),
            batch=int(self.batch[i]),
            replicas=int(self.replicas[i]),
        )


_ARRAYS = ("pp", "dp", "tp", "ep", "etp", "sequences", "microbatches", "replicas")


def make_points(
    graph: OpGraph,
    cluster: Cluster,
    fixed: Mapping[str, int] | None = None,
    concurrency: int | None = None,
    *,
    uneven: bool = False,
) -> Points:
    """All degree points of a model on a cluster under pinned degrees (keys of `PINNABLE`).

    With ``concurrency`` requests in flight over the whole cluster every rank has its share of them, rounded up.

    Raises:
        InvalidInputError: for an unknown or non-positive pin, or pins that break a rule (the rule is named).
    """
    fixed = dict(fixed or {})
    _check_pins(fixed, cluster)
    if concurrency is not None and "batch" in fixed:
        raise InvalidInputError(f"batch={fixed['batch']} and concurrency={concurrency} both fix the requests in flight")
    groups, reasons = stage_groups(graph, cluster, fixed, uneven=uneven)
    if not groups:
        if reasons:
            raise InvalidInputError("; ".join(dict.fromkeys(r.message for r in reasons[:3])))
        pins = ", ".join(f"{k}={v}" for k, v in fixed.items())
        raise InvalidInputError(
            f"no degrees of {cluster.num_devices} devices satisfy {pins or 'the model'}:"
            " dp*tp = ep*etp, pp*dp*tp at most the cluster, and one of dp and ep divides the other"
        )
    rows: list[tuple[int, int, int, int, int, int, int, int]] = []
    of: list[int] = []
    for i, g in enumerate(groups):
        replicas = fixed.get("replicas", cluster.num_devices // (g.pp * g.dp * g.tp))
        for sequences, microbatches in _batches(g, fixed, replicas, concurrency):
            rows.append((g.pp, g.dp, g.tp, g.ep, g.etp, sequences, microbatches, replicas))
            of.append(i)
    if not rows:
        raise InvalidInputError(
            f"batch={fixed['batch']} is no multiple of dp*pp at any legal degrees; pin dp or choose a multiple"
        )
    table = np.array(rows, dtype=np.int64)
    index = np.array(of)
    return Points(
        **{name: table[:, j].copy() for j, name in enumerate(_ARRAYS)},
        sizes={a: np.array([g.sizes[a] for g in groups])[index] for a in groups[0].sizes},
        in_node={a: np.array([g.in_node[a] for g in groups])[index] for a in groups[0].in_node},
    )


def _check_pins(fixed: Mapping[str, int], cluster: Cluster) -> None:
    for key, value in fixed.items():
        if key not in PINNABLE:
            raise InvalidInputError(f"cannot fix {key!r}; degrees are {', '.join(PINNABLE)}")
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InvalidInputError(f"{key}={value!r} must be a whole number of at least 1")
        if value > LARGEST_PIN:
            raise InvalidInputError(f"{key}={value} is more than {LARGEST_PIN:,}")
    needed = fixed.get("pp", 1) * max(fixed.get("dp", 1) * fixed.get("tp", 1), fixed.get("ep", 1) * fixed.get("etp", 1))
    needed *= fixed.get("replicas", 1)
    if needed > cluster.num_devices:
        pins = ", ".join(f"{k}={v}" for k, v in fixed.items() if k != "batch")
        raise InvalidInputError(f"{pins} needs {needed} devices; the cluster {cluster.name} has {cluster.num_devices}")


def _batches(g: StageGroup, fixed: Mapping[str, int], replicas: int, concurrency: int | None) -> list[tuple[int, int]]:
    if concurrency is not None:
        each = -(-concurrency // (replicas * g.dp))
        microbatches = min(g.pp, each)
        return [(-(-each // microbatches), microbatches)]
    if "batch" not in fixed:
        return [(s, g.pp) for s in sequence_grid(LARGEST_SEQUENCES)]
    each, rest = divmod(fixed["batch"], g.dp)
    if rest or each == 0:
        return []
    microbatches = min(g.pp, each)
    return [] if each % microbatches else [(each // microbatches, microbatches)]


def points_at(
    graph: OpGraph, cluster: Cluster, layouts: Sequence[tuple[int, int, int]], sequences: Sequence[float]
) -> Points:
    """Points on one stage at given (dp, tp, ep) and sequences of a dp rank (not always whole), one replica each."""
    groups = [_stage_group(graph, cluster, 1, dp, tp, ep, {}) for dp, tp, ep in layouts]
    ones = np.ones(len(groups), dtype=np.int64)
    return Points(
        pp=ones,
        dp=np.array([g.dp for g in groups]),
        tp=np.array([g.tp for g in groups]),
        ep=np.array([g.ep for g in groups]),
        etp=np.array([g.etp for g in groups]),
        sequences=np.array(sequences),
        microbatches=ones,
        replicas=ones,
        sizes={a: np.array([g.sizes[a] for g in groups]) for a in groups[0].sizes},
        in_node={a: np.array([g.in_node[a] for g in groups]) for a in groups[0].in_node},
    )
