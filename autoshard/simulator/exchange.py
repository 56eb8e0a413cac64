r"""Time of an expert-parallel all_to_all: the library's, or that of an engine's own kernels, whichever is faster.

The library sends the counts and then the rows, each an all_to_all. An engine's kernels are priced by the laws of
`autoshard.cost.dispatch`: ``low_latency`` sends a row an expert and needs no counts first, ``normal`` sends a token
to a node once and has a higher floor. Where a device has no such law the library's stands.

Neglected: that ranks are loaded unequally, fp8 rows, and overlap with compute.
"""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from autoshard.cost import collective_s, dispatch_s
from autoshard.hardware import Cluster

FloatArray = NDArray[np.float64]

ENGINE_DISPATCH = ("low_latency", "normal")
"""Engine kernels for few tokens and for many (DeepEP's, as SGLang runs them)."""


def exchange_s(
    cluster: Cluster,
    direction: Literal["dispatch", "combine"],
    tokens: FloatArray,
    num_bytes: FloatArray,
    top_k: int,
    count_bytes: float,
    size: NDArray[np.int64],
    size_in_node: NDArray[np.int64],
) -> FloatArray:
    """Seconds of one direction, as every rank of the group sees it.

    Args:
        cluster: Its links, and its device's dispatch laws.
        direction: To the experts, or back.
        tokens: Tokens of one rank, each with ``top_k`` rows.
        num_bytes: Bytes of all rows of one rank.
        top_k: Experts a token.
        count_bytes: Bytes of the counts that the library sends first; 0 on the way back.
        size: Ranks of the group; 1 costs nothing.
        size_in_node: Ranks of the group that share a node.
    """
    each = exchange_algorithms(cluster, direction, tokens, num_bytes, top_k, count_bytes, size, size_in_node)
    found = each["library"]
    for seconds in each.values():
        found = np.minimum(found, seconds)
    return found


def exchange_algorithms(
    cluster: Cluster,
    direction: Literal["dispatch", "combine"],
    tokens: FloatArray,
    num_bytes: FloatArray,
    top_k: int,
    count_bytes: float,
    size: NDArray[np.int64],
    size_in_node: NDArray[np.int64],
) -> dict[str, FloatArray]:
    """Seconds of one direction with the library and with each of an engine's kernels that the device has laws of."""
    intra, inter = cluster.intra, cluster.inter
    rows = collective_s("all_to_all", num_bytes, size, size_in_node, intra, inter)
    found = {"library": rows + collective_s("all_to_all", count_bytes, size, size_in_node, intra, inter)}
    for name in ENGINE_DISPATCH:
        law = cluster.device.dispatch.get(f"{name}/{direction}")
        if law is not None:
            nodes = np.ceil(size / size_in_node)
            row_bytes = num_bytes / (tokens * top_k)
            found[name] = dispatch_s(law, tokens, row_bytes, top_k, size, nodes, intra, inter)
    return found
