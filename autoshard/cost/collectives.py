r"""Time of a collective: latency, and a bandwidth that large messages fill better.

On one link, ``W`` bytes crossing it per rank:

.. math:: t = \alpha + \alpha_r (n - 1) + \frac{W}{\beta}\left(1 + \sqrt{s / W}\right)

(fitted on `nccl_h100`: 6-12 % median held-out error with one set of constants for 2, 4 and 8 ranks). Bytes are named
as nccl-tests names them, ``W`` follows from them:

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
from autoshard.hardware import CollectiveKind, Link


def _link_s(link: Link, kind: CollectiveKind, bus_bytes: FloatArray, size: FloatArray) -> FloatArray:
    """Time of one level; zero for a group of one or nothing to move."""
    law = link.law(kind)
    rate = link.bytes_per_s * law.efficiency
    moving_s = (bus_bytes + np.sqrt(bus_bytes * law.saturation_bytes)) / rate
    latency_s = law.latency_s + law.latency_per_rank_s * (size - 1.0)
    return np.where((size > 1) & (bus_bytes > 0), latency_s + moving_s, 0.0)


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
) -> FloatArray:
    """Seconds of one collective, as every rank of the group sees it.

    Args:
        kind: Which collective.
        num_bytes: Bytes by the convention above.
        size: Ranks of the group; 1 costs exactly nothing. A ``send_recv`` has 2.
        size_in_node: Ranks of the group that share a node, between 1 and ``size``.
        intra: The link inside a node.
        inter: The link between nodes.
    """
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
