"""The intermediate representation: fused ops with named dims, and the graph they form. Never imports torch."""

from autoshard.ir.dims import Dim, Param
from autoshard.ir.graph import Block, OpGraph
from autoshard.ir.ops import (
    BLOCK_INPUT,
    Activation,
    Add,
    Attention,
    Embedding,
    ExpertsLinear,
    FusedOp,
    Linear,
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
    "Dim",
    "Embedding",
    "ExpertsLinear",
    "FusedOp",
    "Linear",
    "Norm",
    "OpGraph",
    "Opaque",
    "Param",
    "Router",
]
