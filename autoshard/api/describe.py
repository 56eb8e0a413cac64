"""A plan, and a traced model, as the JSON that people and programs read. The command line shows the same data."""

from collections.abc import Mapping
from typing import Any

from autoshard.api.build_plan import degrees_dict
from autoshard.ir import Block, FusedOp, OpGraph
from autoshard.plan import PlanData
from autoshard.sharding import Choice, Strategy, mesh_of
from autoshard.sharding.legality import axis_sizes, choice_key, choice_keys, model_choices, option_illegal
from autoshard.sharding.space import free_ops, options


def describe_plan(plan: PlanData) -> dict[str, Any]:
    """Everything a plan says, without the graph and the per-parameter placements of its file."""
    search = plan.search
    return {
        "model": {
            "name": plan.model.name,
            "class": plan.model.class_name,
            "parameters": plan.model.parameters,
            "active_parameters": plan.model.active_parameters,
        },
        "cluster": plan.cluster.model_dump(mode="json"),
        "workload": {n: getattr(plan.workload, n) for n in plan.workload.__dataclass_fields__},
        "degrees": degrees_dict(plan.degrees),
        "mesh": {name: size for name, size in plan.mesh.dims},
        "stages": list(plan.stages),
        "choices": dict(plan.strategy.choices),
        "blocks": [
            {"name": b.name, "repeat": b.repeat, "ops": [o.model_dump(mode="json") for o in plan.ops[b.name]]}
            for b in plan.graph.components()
        ],
        "predicted": plan.predicted.model_dump(mode="json"),
        "search": {
            "algorithm": search.algorithm,
            "seed": search.seed,
            "budget": search.budget,
            "calls": search.calls,
            "found_tokens_per_s_per_gpu": search.found_tokens_per_s_per_gpu,
            "exact_tokens_per_s_per_gpu": search.exact_tokens_per_s_per_gpu,
            "regret_to_exact": search.regret_to_exact,
            "rl_regret": search.rl_regret,
            "taken_from": search.taken_from,
        },
        "space": {
            "degree_points": search.num_points,
            "strategies": search.num_strategies,
            "legal_choices": legal_choices(plan.graph, plan.strategy),
        },
        "binding": list(plan.binding),
        "alternatives": [a.model_dump(mode="json") for a in plan.alternatives],
    }


def legal_choices(graph: OpGraph, strategy: Strategy) -> dict[str, dict[str, Any]]:
    """The model's choices, then each op's own: those legal at the strategy's degrees, and why the others are not."""
    sizes = axis_sizes(mesh_of(graph, strategy.degrees))
    keys = choice_keys(graph)
    own = model_choices(graph, sizes, pp=strategy.degrees.pp)
    found = {key: _offered(key.partition("/")[2], reasons) for key, reasons in own.items()}
    for block in graph.components():
        for op in free_ops(block):
            key = choice_key(graph, block, op)
            if key not in keys or key in found:
                continue
            reasons = {o.choice: option_illegal(o, sizes, strategy.residual, op) for o in options(block, op)}
            found[key] = _offered(op.kind, reasons)
    return found


def _offered(kind: str, reasons: Mapping[Choice, str | None]) -> dict[str, Any]:
    return {
        "kind": kind,
        "legal": [c for c, why in reasons.items() if why is None],
        "excluded": [{"choice": c, "reason": why} for c, why in reasons.items() if why is not None],
    }


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
            }
            for b, op in opaque
        ],
        "opaque_flops_share": sum(b.repeat * op.flops(1.0) for b, op in opaque) / total if total else 0.0,
        "opaque_parameters_share": sum(b.repeat * op.num_parameters for b, op in opaque) / graph.num_parameters,
        "opaque_state_share": 0.0,  # an opaque op keeps no state: a mixer is never opaque
    }


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
