"""Megatron-core: ``torchrun`` of its dynamic inference example, with its parallelism as arguments.

dp is what the world leaves over; experts take ``--expert-model-parallel-size`` times ``--expert-tensor-parallel-size``
ranks of it. Query groups must divide by tp. The model's own arguments come from its converted checkpoint
(``--use-checkpoint-args``).
"""

from autoshard.export.artifact import Export, ExportedFile
from autoshard.export.engines import launch
from autoshard.export.engines.pattern import Engine
from autoshard.export.target import Target
from autoshard.ir import Mixer, Opaque, OpGraph
from autoshard.plan import PlanData
from autoshard.sharding import Degrees
from autoshard.sharding.legality import attention_heads, expert_counts

VERSION = f"Megatron-core ({launch.version_of('megatron')})"
_WEIGHTS = {"bfloat16": {"bf16": True}, "float16": {"fp16": True}}
_KV = {"bfloat16": None, "float16": None}


def degrees_reasons(graph: OpGraph, d: Degrees) -> tuple[str, ...]:
    """Degrees that Megatron-core does not take."""
    found = [
        f"tp={d.tp} does not divide {kv} query groups, which it does not copy"
        for _, kv in attention_heads(graph)
        if kv % d.tp
    ]
    odd = [f"{b.name}/{op.name}" for b, op in graph.all_ops() if isinstance(op, Mixer | Opaque)]
    if odd:
        found.append(f"{odd[0]} is no layer of its GPT model")
    return tuple(found)


def layout_text(stages: tuple[int, ...]) -> str:
    """Stages as ``--pipeline-model-parallel-layout`` writes them: embedding, layers and loss, stages apart by ``|``."""
    parts = [f"t*{n}" for n in stages]
    parts[0] = "E" + parts[0]
    parts[-1] += "L"
    return "|".join(parts)


def write(plan: PlanData) -> Export:
    """Arguments and command of one replica."""
    d = plan.degrees
    weights, _ = launch.dtype_flags(plan, _WEIGHTS, _KV, VERSION)
    longest, tokens = launch.lengths(plan)
    routed = bool(expert_counts(plan.graph))
    arguments = launch.checked(
        "megatron",
        {
            "use-checkpoint-args": True,
            "tensor-model-parallel-size": d.tp,
            "pipeline-model-parallel-size": d.pp,
            "pipeline-model-parallel-layout": layout_text(plan.stages) if launch.uneven_stages(plan) else None,
            "expert-model-parallel-size": d.ep if routed else None,
            "expert-tensor-parallel-size": d.etp if routed else None,
            "micro-batch-size": 1,  # which the parser demands; requests are batched as they come
            "inference-dynamic-batching-max-requests": d.batch // d.dp,
            "inference-dynamic-batching-max-tokens": max(tokens, 2048),
            "inference-max-seq-length": longest,
            **weights,
        },
    )
    nodes = launch.nodes_of(plan)
    notes = [
        *launch.notes_of(plan, "--moe-token-dispatcher-type"),
        "CHECKPOINT is Megatron's: convert it first; its model arguments are read from it",
    ]
    ranks = {"nproc-per-node": -(-d.num_devices // nodes)}
    if nodes > 1:
        ranks |= {"nnodes": nodes, "node-rank": '"$NODE_RANK"', "master-addr": '"$HEAD_IP"'}  # type: ignore[dict-item]
        notes.append(f"{nodes} nodes: run it on each with HEAD_IP and NODE_RANK (0 to {nodes - 1}) set")
    lines = "\n".join(f"--{k}" if v is True else f"--{k} {v}" for k, v in arguments.items()) + "\n"
    run = launch.command_line(launch.checked("megatron", ranks))
    load = launch.command_line(launch.checked("megatron", {"load": '"$MODEL"'}))
    body = (
        f"torchrun \\\n{run} \\\n"
        f'  "$MEGATRON_LM/examples/inference/gpt/gpt_dynamic_inference.py" \\\n{load} \\\n  $(cat arguments.txt)'
    )
    return Export(
        target="megatron",
        version=VERSION,
        command="MEGATRON_LM=... ./launch.sh CHECKPOINT",
        files=(ExportedFile(name="arguments.txt", text=lines), launch.script(VERSION, plan, body, {})),
        notes=tuple(notes),
    )


ENGINE = Engine(title=VERSION, degrees=degrees_reasons)
TARGET = Target(name="megatron", version=VERSION, reasons=ENGINE.reasons, strategy=ENGINE.strategy, write=write)
