"""A plan as the JSON that people and programs read. The command line shows the same data."""

from collections.abc import Iterator, Mapping
from typing import Any

from autoshard.api.build_plan import degrees_dict
from autoshard.api.export import Exported
from autoshard.engines import position_limit
from autoshard.ir import Mixer, Opaque, OpGraph
from autoshard.plan import PlanData
from autoshard.sharding import Choice, Strategy, mesh_of
from autoshard.sharding.legality import axis_sizes, choice_key, choice_keys, model_choices, option_illegal
from autoshard.sharding.space import expands_latent_of, free_ops, never_offered, options
from autoshard.sharding.wider import wider_parts


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
        "handovers": [h.model_dump(mode="json") for h in plan.handovers],
        "choices": dict(plan.strategy.choices),
        "blocks": [
            {"name": b.name, "repeat": b.repeat, "ops": [o.model_dump(mode="json") for o in plan.ops[b.name]]}
            for b in plan.graph.components()
        ],
        "padding": plan.model_dump(mode="json", by_alias=True, include={"padding"})["padding"],
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
            "exact_is_bound": search.exact_is_bound,
            "taken_from": search.taken_from,
            "balanced_gain": search.balanced_gain,
        },
        "space": {
            "degree_points": search.num_points,
            "strategies": search.num_strategies,
            "legal_choices": legal_choices(plan.graph, plan.strategy),
        },
        "binding": list(plan.binding),
        "alternatives": [a.model_dump(mode="json") for a in plan.alternatives],
        "warnings": list(_warnings(plan)),
    }


def _warnings(plan: PlanData) -> Iterator[str]:
    """What a plan is silent about."""
    for part in wider_parts(plan.graph, plan.strategy):
        yield f"this plan is simulated only: {part} has no code that runs it, so apply, validate and export refuse it"
    source, workload = plan.model.source or {}, plan.workload
    limit = position_limit({**(source.get("whole") or {}), **(source.get("config") or {})})
    tokens = workload.cached_tokens_per_sequence
    if 0 < limit < tokens:
        yield (
            f"sequences of {tokens:,} tokens are longer than the {limit:,} that the model's config allows: engines"
            f" refuse them (autoshard check says which); {limit:,} is the longest that works"
        )


def legal_choices(graph: OpGraph, strategy: Strategy) -> dict[str, dict[str, Any]]:
    """The model's choices, then each op's own: those legal at the strategy's degrees, and why the others are not.

    Ops that could have a choice by their kind and have none are listed too, with the reason.
    """
    sizes = axis_sizes(mesh_of(graph, strategy.degrees))
    keys = choice_keys(graph)
    wider = wider_parts(graph, strategy)
    own = model_choices(graph, sizes, pp=strategy.degrees.pp)
    found = {key: _offered(key.partition("/")[2], reasons) for key, reasons in own.items()}
    for block in graph.components():
        for op in free_ops(block):
            key = choice_key(graph, block, op)
            if key not in keys or key in found:
                continue
            reasons = {
                o.choice: option_illegal(o, sizes, strategy.residual, op, uneven=strategy.uneven)
                for o in options(block, op, wider)
            }
            reasons |= dict(never_offered(block, op))
            found[key] = _offered(op.kind, reasons)
        for op in (o for o in block.ops if isinstance(o, Mixer | Opaque) and o.follows is None):
            why = {None: None, **dict(never_offered(block, op))}
            found.setdefault(f"{block.name}/{op.name}", _offered(op.kind, why))
        for op in (o for o in block.ops if expands_latent_of(block, o) is not None):
            found[f"{block.name}/{op.name}"] = _offered(op.kind, dict(never_offered(block, op)))
    return found


def _offered(kind: str, reasons: Mapping[Choice, str | None]) -> dict[str, Any]:
    return {
        "kind": kind,
        "legal": [c for c, why in reasons.items() if why is None],
        "excluded": [{"choice": c, "reason": why} for c, why in reasons.items() if why is not None],
    }


def describe_export(found: Exported) -> dict[str, Any]:
    """An export with its files' texts; ``predicted_loss`` is the share of the plan's throughput lost to the target."""
    e = found.export
    return {
        "target": e.target,
        "version": e.version,
        "command": e.command,
        "degrees": degrees_dict(found.plan.degrees),
        "nearest": found.nearest,
        "predicted_loss": found.loss,
        "predicted_tokens_per_s_per_gpu": found.plan.predicted.tokens_per_s_per_gpu,
        "notes": list(e.notes),
        "files": [{"name": f.name, "text": f.text} for f in e.files],
    }
