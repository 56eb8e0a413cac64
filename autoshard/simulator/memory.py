"""Memory of one rank besides weights and KV cache: activations and a fixed workspace. Arrays over points.

Activations are bounded from above for any choice: the residual and two tensors of the widest op for a rank's tokens,
the gathered tokens of all dp ranks, this rank's (token, expert) rows at their full width, and the logits of one token a
sequence in float32. Engines reuse buffers from layer to layer, so one layer's worth is held.
"""

import numpy as np
from numpy.typing import NDArray

from autoshard.ir import Activation, Add, Attention, ExpertsLinear, LatentAttention, Linear, Mixer, OpGraph, Router
from autoshard.sharding.space import tensor_width
from autoshard.simulator.amounts import Amounts
from autoshard.simulator.work import ACTIVATION_BYTES
from autoshard.units import GIB

FloatArray = NDArray[np.float64]

WORKSPACE_BYTES = 2.0 * GIB
"""CUDA context, communication buffers, captured graphs. [assumed: 1.5-2.5 GiB seen in engine logs; refined later]"""


def activation_bytes(graph: OpGraph, amounts: Amounts) -> FloatArray:
    """Bytes of activations of one microbatch on one rank, an upper bound over choices ([points])."""
    dense = [
        tensor_width(op)
        for _, op in graph.all_ops()
        if isinstance(op, Linear | Attention | LatentAttention | Mixer | Router) and not getattr(op, "is_head", False)
    ]
    hidden = next((op.width.size for _, op in graph.all_ops() if isinstance(op, Add)), 0)
    vocab = max((op.out_dim.size for _, op in graph.all_ops() if isinstance(op, Linear) and op.is_head), default=0)
    total = amounts.tokens * (2.0 * hidden + 2.0 * max(dense, default=0)) * ACTIVATION_BYTES
    total = total + amounts.sequences * vocab * 4.0
    routed = [op for _, op in graph.all_ops() if isinstance(op, ExpertsLinear)]
    if routed:
        inner = max(op.out_dim.size for op in routed if op.stage == "up")
        inner += max(
            (op.width.size for _, op in graph.all_ops() if isinstance(op, Activation) and op.routed), default=0
        )
        total = total + amounts.group_tokens * hidden * ACTIVATION_BYTES
        total = total + amounts.pairs * (inner + hidden) * ACTIVATION_BYTES
    return total
