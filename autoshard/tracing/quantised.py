"""How a published checkpoint is quantised, as far as it decides where a weight may be cut.

The classes that are traced hold unquantised parameters; only the config says that the files hold blocks: fp8 in squares
of ``weight_block_size`` (DeepSeek-V3, Qwen3 FP8), mxfp4 in runs of 32 along the contracted dim (gpt-oss; OCP
Microscaling Formats 1.0, section 5.1: a scale per 32 elements).
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from autoshard.ir import Block, ExpertsLinear, OpGraph

_MX_BLOCK = 32
_REDUCED_BLOCK = 8


def quantised_blocks(config: Mapping[str, Any]) -> tuple[int, int]:
    """(out, in) elements of a weight that share a scale, by a model's config; (1, 1) if nothing says so."""
    given = config.get("quantization_config")
    if not isinstance(given, Mapping):
        return 1, 1
    size = given.get("weight_block_size")
    if isinstance(size, list | tuple) and len(size) == 2 and all(isinstance(n, int) and n > 0 for n in size):
        return int(size[0]), int(size[1])
    return (1, _MX_BLOCK) if given.get("quant_method") == "mxfp4" else (1, 1)


def blocks_of(graph: OpGraph) -> tuple[int, int]:
    """The blocks that `with_blocks` gave a graph's experts; (1, 1) if none."""
    return next((op.blocks for _, op in graph.all_ops() if isinstance(op, ExpertsLinear)), (1, 1))


def reduced_quantisation(config: Mapping[str, Any], reduced: Mapping[str, Any], ranks: int) -> dict[str, Any]:
    """Fields that quantise a reduced config in the format of the full one; empty where there is none that is known.

    Blocks of fp8 shrink with the widths, to 8 x 8, which divides every shard of a reduced model. Groups of mxfp4 are 32
    by definition, so that experts get a width of as many for every rank.
    """
    given = config.get("quantization_config")
    blocks = quantised_blocks(config)
    if not isinstance(given, Mapping) or blocks == (1, 1):
        return {}
    if given.get("quant_method") == "mxfp4":
        width = "moe_intermediate_size" if reduced.get("moe_intermediate_size") else "intermediate_size"
        return {"quantization_config": {"quant_method": "mxfp4"}, width: _MX_BLOCK * ranks}
    return {"quantization_config": {"quant_method": "fp8", "weight_block_size": [_REDUCED_BLOCK, _REDUCED_BLOCK]}}


def with_blocks(graph: OpGraph, blocks: tuple[int, int]) -> OpGraph:
    """The graph with routed experts quantised by ``blocks``."""
    if blocks == (1, 1):
        return graph

    def told(block: Block) -> Block:
        ops = tuple(replace(op, blocks=blocks) if isinstance(op, ExpertsLinear) else op for op in block.ops)
        return replace(block, ops=ops)

    return replace(graph, blocks=tuple(map(told, graph.blocks)))
