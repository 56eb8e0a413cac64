r"""Time of a collective: latency, and a bandwidth that large messages fill better.

On one link, ``W`` bytes crossing it per rank:

.. math:: t = \alpha + \alpha_r (n - 1) + \delta \frac{W}{W + W_0}
   + \frac{W}{\beta}\left(1 + \sqrt{s / W}\right)

with constants for groups of 2, 4 and 8 and interpolated between (errors stand beside them in the device files). The
step ``delta`` is what leaving the protocol for small messages costs. Bytes are named as nccl-tests names them, ``W``
follows from them:

============== ================================== =======================
kind           ``num_bytes``                      bus bytes ``W``
============== ================================== =======================
all_reduce     the buffer                         ``2 (n - 1) / n`` of it
all_gather     the gathered output                ``(n - 1) / n``
reduce_scatter the whole input of a rank          ``(n - 1) / n``
all_to_all     what a rank sends, itself included ``(n - 1) / n``
send_recv      the message                        all of it
============== ================================== =======================

A group that spans nodes works in two levels, each rank of a node driving its own NIC with its part: all_reduce =
reduce_scatter in the node, all_reduce of the part across nodes, all_gather in the node; gathers and scatters likewise.
all_to_all uses both links at once and waits for the slower. ``send_recv`` crosses nodes unless both ranks share one.
"""

import numpy as np
from numpy.typing import ArrayLike

from autoshard.cost.arrays import FloatArray, floats
from autoshard.hardware import CollectiveKind, CollectiveLaw, Link


def _constants(law: CollectiveLaw, size: FloatArray) -> dict[str, FloatArray]:
    """The law's constants for groups of ``size``, interpolated in the logarithm of the size."""
    names = ("latency_s", "efficiency", "saturation_bytes", "step_s", "step_bytes")
    if not law.by_ranks:
        found = {name: floats(getattr(law, name)) for name in names}
        found["latency_s"] = found["latency_s"] + law.latency_per_rank_s * (size - 1.0)
        return found
    anchors = np.log2([float(ranks) for ranks, _ in law.by_ranks])
    at = np.log2(np.maximum(size, 1.0))
    found = {name: floats(np.interp(at, anchors, [getattr(each, name) for _, each in law.by_ranks])) for name in names}
    if len(anchors) > 1:
        last, before = law.by_ranks[-1][1].latency_s, law.by_ranks[-2][1].latency_s
        slope = max(last - before, 0.0) / (anchors[-1] - anchors[-2])
        found["latency_s"] = found["latency_s"] + slope * np.maximum(at - anchors[-1], 0.0)
    return found


def collective_law_s(law: CollectiveLaw, bytes_per_s: float, bus_bytes: ArrayLike, size: ArrayLike) -> FloatArray:
    """Time of one level under a given law; zero for a group of one or nothing to move."""
    bus_bytes, size = floats(bus_bytes), floats(size)
    at = _constants(law, size)
    moving_s = (bus_bytes + np.sqrt(bus_bytes * at["saturation_bytes"])) / (bytes_per_s * at["efficiency"])
    some = bus_bytes > 0
    over = bus_bytes / np.where(some, bus_bytes + at["step_bytes"], 1.0)
    return np.where((size > 1) & some, at["latency_s"] + at["step_s"] * over + moving_s, 0.0)


def _link_s(link: Link, kind: CollectiveKind, bus_bytes: FloatArray, size: FloatArray) -> FloatArray:
    return collective_law_s(link.law(kind), link.bytes_per_s, bus_bytes, size)


def _shared(size: FloatArray) -> FloatArray:
    """Part of a buffer that leaves its rank in a group of ``size``."""
    return (size - 1.0) / size


def collective_s(
    kind: CollectiveKind,
    num_bytes: ArrayLike,
    size: ArrayLike,
    size_in_node: ArrayLike,
    intra: Link,
    inter: Link,
    *,
    engine: str | None = None,
    eager: bool = False,
) -> FloatArray:
    """Seconds of one collective, as every rank of the group sees it.

    A collective on several levels replays its floors once a level, but is launched once.

    Args:
        kind: Which collective.
        num_bytes: Bytes by the convention above.
        size: Ranks of the group; 1 costs exactly nothing. A ``send_recv`` has 2.
        size_in_node: Ranks of the group that share a node, between 1 and ``size``.
        intra: The link inside a node.
        inter: The link between nodes.
        engine: Name of an engine's own all-reduce (`Link.engine_laws`); inside a node the faster of it and the
            library's is taken. A link that does not know the name has only the library's.
        eager: Launched from Python instead of replayed in a graph.
    """
    found = _replayed_s(kind, num_bytes, size, size_in_node, intra, inter, engine)
    if not eager:
        return found
    launch_s = np.where(floats(size_in_node) < floats(size), inter.eager_latency_s, intra.eager_latency_s)
    return np.where(found > 0, found + launch_s, 0.0)


def _replayed_s(
    kind: CollectiveKind,
    num_bytes: ArrayLike,
    size: ArrayLike,
    size_in_node: ArrayLike,
    intra: Link,
    inter: Link,
    engine: str | None,
) -> FloatArray:
    num_bytes, size, local = floats(num_bytes), floats(size), floats(size_in_node)
    assert np.all(local >= 1) and np.all(local <= size), "size_in_node must lie between 1 and size"
    nodes = np.ceil(size / local)
    part_bytes = num_bytes / local
    match kind:
        case "all_reduce":
            within_bytes = num_bytes * _shared(local)
            two_level = (
                _link_s(intra, "reduce_scatter", within_bytes, local)
                + _link_s(inter, "all_reduce", 2.0 * part_bytes * _shared(nodes), nodes)
                + _link_s(intra, "all_gather", within_bytes, local)
            )
            one_level = _link_s(intra, "all_reduce", 2.0 * within_bytes, local)
            own = intra.engine_laws.get(engine) if engine is not None else None
            if own is not None:
                one_level = np.minimum(one_level, collective_law_s(own, intra.bytes_per_s, 2.0 * within_bytes, local))
            return np.where(nodes > 1, two_level, one_level)
        case "all_gather" | "reduce_scatter":
            within = _link_s(intra, kind, num_bytes * _shared(local), local)
            return within + _link_s(inter, kind, part_bytes * _shared(nodes), nodes)
        case "all_to_all":
            within = _link_s(intra, kind, num_bytes * (local - 1.0) / size, local)
            across = _link_s(inter, kind, num_bytes * (size - local) / size, nodes)
            return np.maximum(within, across)
        case "send_recv":
            across = _link_s(inter, kind, num_bytes, size)
            return np.where(local > 1, _link_s(intra, kind, num_bytes, size), across)
