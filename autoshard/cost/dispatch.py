r"""Time of a DeepEP-style dispatch or combine: tokens to the ranks of their experts and back.

.. math:: t = \alpha + \alpha_n g(N) + \left(\frac{L}{B_l e_l}\left(1 + \frac{u_0}{u}\right)
   \oplus_4 \frac{R}{B_r e_r}\right)

``R`` bytes of a rank leave the node over its NIC, ``L`` bytes are copied by ``u`` compute units over the link inside
the node. Throughput kernels send a token to every node and rank at most once, so with ``k`` experts a token spread
evenly over ``n`` ranks in ``N`` nodes ``R`` is ``(N - 1)(1 - (1 - 1/N)^k)`` rows and ``L`` the
``(n - 1)(1 - (1 - 1/n)^k)`` rows of all ranks reached plus the ``R`` that are forwarded; ``g = log2 N``. Low-latency
kernels send one row an expert: ``R = k (1 - 1/N)``, ``L = k / N``; ``g = 1`` across nodes.
"""

import numpy as np
from numpy.typing import ArrayLike

from autoshard.cost.arrays import FloatArray, floats
from autoshard.cost.roofline import overlapped_s
from autoshard.hardware import DispatchLaw, Link

_OVERLAP = 4.0


def dispatch_s(
    law: DispatchLaw,
    tokens: ArrayLike,
    row_bytes: ArrayLike,
    top_k: ArrayLike,
    ranks: ArrayLike,
    nodes: ArrayLike,
    intra: Link,
    inter: Link,
    num_units: ArrayLike = 0,
) -> FloatArray:
    """Seconds of one dispatch or combine as a rank sees it.

    Args:
        law: Its constants (`Device.dispatch`).
        tokens: Tokens of one rank.
        row_bytes: Bytes of one token's row, scales included.
        top_k: Experts a token.
        ranks: Ranks of the group; 1 costs nothing.
        nodes: Nodes they are spread over.
        intra: The link inside a node.
        inter: The link between nodes.
        num_units: Compute units given to the kernel; 0 where not known, then it has as many as it needs.
    """
    tokens, row_bytes, top_k = floats(tokens), floats(row_bytes), floats(top_k)
    ranks, nodes, units = floats(ranks), floats(nodes), floats(num_units)
    if law.deduplicated:
        remote = (nodes - 1.0) * (1.0 - (1.0 - 1.0 / nodes) ** top_k)
        local = (ranks - 1.0) * (1.0 - (1.0 - 1.0 / ranks) ** top_k) + remote
        hops = np.log2(nodes)
    else:
        remote, local = top_k * (1.0 - 1.0 / nodes), top_k / nodes
        hops = (nodes > 1).astype(np.float64)
    rows_bytes = tokens * row_bytes
    slow = 1.0 + np.divide(law.half_rate_units, units, out=np.zeros(np.shape(units)), where=units > 0)
    local_s = local * rows_bytes / (intra.bytes_per_s * law.local_efficiency) * slow
    remote_s = remote * rows_bytes / (inter.bytes_per_s * law.remote_efficiency)
    found = law.latency_s + law.node_latency_s * hops + overlapped_s(local_s, remote_s, _OVERLAP)
    return np.where(ranks > 1, found, 0.0)
