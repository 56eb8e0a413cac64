"""The intermediate representation: fused ops with named dims, and the graph they form. Never imports torch."""

from autoshard.ir.dims import Dim, HeadSplit, Param
from autoshard.ir.graph import Block, OpGraph, once_per_graph
from autoshard.ir.ops import (
    BLOCK_INPUT,
    Activation,
    Add,
    Attention,
    Combine,
    Embedding,
    ExpertsLinear,
    FusedOp,
    Indexer,
    LatentAttention,
    Linear,
    Mixer,
    Norm,
    Opaque,
    Router,
)

__all__ = [
    "BLOCK_INPUT",
    "Activation",
    "Add",
    "Attention",
    "Block",
    "Combine",
    "Dim",
    "Embedding",
    "ExpertsLinear",
    "FusedOp",
    "HeadSplit",
    "Indexer",
    "LatentAttention",
    "Linear",
    "Mixer",
    "Norm",
    "OpGraph",
    "Opaque",
    "Param",
    "Router",
    "once_per_graph",
]
