"""A traced model as the JSON that people and programs read. Imports no search: ``autoshard trace`` needs none."""

from typing import Any

from autoshard.ir import Block, FusedOp, OpGraph
from autoshard.sharding import degree_reasons
from autoshard.sharding.legality import expert_counts


def describe_graph(graph: OpGraph, *, kv_dtype: str = "bfloat16") -> dict[str, Any]:
    """A traced model: sizes, work per token, and every fused op of every kind of block.

    FLOPs are per token without attention's context term (``attention_flops_per_token_per_key`` has it), as a serving
    engine spends them (top-k experts, causal half, latent attention absorbed); ``traced_*`` are what the model's own
    code spends in matrices. ``bytes`` are those of an op's parameters.
    """
    total = graph.flops(1.0, 0.0)
    opaque = [(b, op) for b, op in graph.all_ops() if op.kind == "opaque"]
    return {
        "model": graph.model_name,
        "class": graph.model_class,
        "dtype": graph.dtype,
        "structural_hash": graph.structural_hash(),
        "parameters": graph.num_parameters,
        "active_parameters": graph.num_active_parameters,
        "flops_per_token": total,
        "attention_flops_per_token_per_key": graph.flops(1.0, 1.0) - total,
        "traced_flops_per_token": graph.traced_flops(1.0, 0.0),
        "traced_attention_flops_per_token_per_key": graph.traced_flops(1.0, 1.0) - graph.traced_flops(1.0, 0.0),
        "kv_bytes_per_token": graph.kv_bytes_per_token(kv_dtype),
        "state_bytes_per_sequence": graph.state_bytes_per_sequence(),
        "blocks": [_block(b) for b in graph.components()],
        "opaque": [
            {
                "block": b.name,
                "name": op.name,
                "fqn": op.fqn,
                "reason": op.reason,
                "parameters_share": b.repeat * op.num_parameters / graph.num_parameters,
                "flops_share": b.repeat * op.flops(1.0) / total if total else 0.0,
                "state_bytes": b.repeat * op.state_bytes,
                "cache_bytes_per_token": b.repeat * op.cache_bytes_per_token,
            }
            for b, op in opaque
        ],
        "opaque_flops_share": sum(b.repeat * op.flops(1.0) for b, op in opaque) / total if total else 0.0,
        "opaque_parameters_share": sum(b.repeat * op.num_parameters for b, op in opaque) / graph.num_parameters,
        "opaque_state_share": graph.opaque_state_share(kv_dtype=kv_dtype),
        "restricted": restricted(graph),
    }


def restricted(graph: OpGraph) -> list[str]:
    """What no degree above one is offered for, whatever its value, because of how the model is written; and why."""
    ep = max(expert_counts(graph), default=1)
    points = ((2, 1, 1, 1), (1, 1, ep, ep), (1, 2, 1, ep))
    reasons = [r for pp, dp, tp, ep in points for r in degree_reasons(graph, pp=pp, dp=dp, tp=tp, ep=ep)]
    found = [r.message for r in reasons if r.rule in _AS_WRITTEN]
    return list(dict.fromkeys(found))


_AS_WRITTEN = frozenset({"pipeline", "own experts"})


def _block(block: Block) -> dict[str, Any]:
    return {
        "name": block.name,
        "repeat": block.repeat,
        "instances": list(block.instances),
        "ops": [_op(op) for op in block.ops],
    }


def _op(op: FusedOp) -> dict[str, Any]:
    return {
        "name": op.name,
        "kind": op.kind,
        "fqn": op.fqn,
        "inputs": list(op.inputs),
        "signature": op.signature,
        "flops": op.flops(1.0),
        "bytes": sum(p.num_bytes for p in op.params if p.shared_with is None),
        "params": [
            {"fqn": p.fqn, "shape": list(p.shape), "dtype": p.dtype, "shared_with": p.shared_with} for p in op.params
        ],
    }
