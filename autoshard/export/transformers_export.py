"""``--to transformers``: a `DistributedConfig` and a script that loads a checkpoint under it.

Rules of transformers 5.24 (``transformers/distributed``): styles are set by names in which ``*`` stands for the layer,
so layers cannot differ; tensor and pipeline parallelism do not load together; experts are whole under expert
parallelism; beside it the only data parallelism is FSDP, which shards what a plan replicates.
"""

import importlib
import json
from dataclasses import replace

from autoshard.export.artifact import Export, ExportedFile
from autoshard.export.reading import Reading, residual_reasons, unknown_choices
from autoshard.export.target import Target
from autoshard.export.transformers_styles import Rule, rules
from autoshard.ir import OpGraph
from autoshard.plan import PlanData
from autoshard.sharding import Degrees, Strategy
from autoshard.sharding.legality import axis_sizes, choice_key, expert_counts, mesh_of
from autoshard.sharding.patterns import pattern_strategy
from autoshard.sharding.strategy import DISPATCH

VERSION = "5.24"

_SCRIPT = '''"""Loads a checkpoint of {model} under the sharding plan beside this file. Written by autoshard for
transformers {version}; autoshard itself is not needed.

    torchrun --nproc-per-node {ranks} load.py CHECKPOINT_FOLDER

{ranks} ranks hold one replica{replicas}. `load(folder)` gives the model; run as a script it prints the next token
after a few others. Needs `pip install "transformers>={version}" accelerate`.
"""

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import transformers
from transformers.distributed import DistributedConfig

HERE = Path(__file__).resolve().parent


def load(checkpoint, **options):
    """The model on this rank's shard; `options` go to `from_pretrained` (dtype, attn_implementation ...)."""
    config = DistributedConfig(**json.loads((HERE / "distributed_config.json").read_text()))
    return transformers.{class_name}.from_pretrained(checkpoint, distributed_config=config, **options).eval()


def main():
    model = load(sys.argv[1], dtype=getattr(torch, "{dtype}"))
    tokens = torch.arange(1, 9, device=model.device)[None, :]
    with torch.no_grad():
        logits = model(input_ids=tokens, use_cache=False).logits
    if int(os.environ.get("RANK", "0")) == 0:
        print(f"logits {{tuple(logits.shape)}}; most likely next token {{logits[0, -1].argmax().item()}}")
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
'''


def reasons(graph: OpGraph, strategy: Strategy) -> tuple[str, ...]:
    """Why transformers 5.24 cannot run ``strategy``."""
    d = strategy.degrees
    found = [*residual_reasons(strategy), *unknown_choices(graph, strategy, known=(DISPATCH,))]
    if d.pp > 1 and d.group > 1:
        found.append(f"pp={d.pp} with {d.group} ranks a stage: pipeline and tensor parallelism do not load together")
    elif d.pp > 1:
        found.append(f"pp={d.pp}: its pipeline runs one batch at a time, stage after stage, not {d.pp} at once")
    if d.dp > 1:
        found.append(f"dp={d.dp}: its data parallelism is FSDP, which shards what the plan replicates")
    if expert_counts(graph) and d.ep > 1 and d.etp > 1:
        found.append(f"ep={d.ep} with etp={d.etp}: experts are whole on a rank under expert parallelism")
    found += _experts_reasons(graph, d)
    if found:
        return tuple(found)
    styles: dict[str, str] = {}
    for rule in rules(Reading.of(graph, strategy)):
        if rule.style is None:
            found.append(rule.why)
        elif styles.setdefault(rule.name, rule.style) != rule.style:
            found.append(f"{rule.name} is {styles[rule.name]} in some layers and {rule.style} in others")
    return tuple(dict.fromkeys(found))


def _experts_reasons(graph: OpGraph, d: Degrees) -> tuple[str, ...]:
    """Whether the model's own class is one whose experts can be split: its config has a plan for them."""
    model_class = getattr(importlib.import_module("transformers"), graph.model_class, None)
    if model_class is None:
        return (f"{graph.model_class} is not a class of transformers",)
    config = model_class.config_class
    by_expert = bool(getattr(config, "base_model_ep_plan", None))
    by_tensor = "moe_tp_experts" in (getattr(config, "base_model_tp_plan", None) or {}).values()
    if expert_counts(graph) and d.ep > 1 and not by_expert:
        return (f"ep={d.ep}: {graph.model_class} has no expert-parallel plan (`base_model_ep_plan`)",)
    if expert_counts(graph) and d.etp > 1 and not (by_expert or by_tensor):
        return (f"etp={d.etp}: the experts of {graph.model_class} cannot be split",)
    return ()


def distributed_config(graph: OpGraph, strategy: Strategy) -> dict[str, object]:
    """The fields of a `DistributedConfig` for a strategy without reasons against it."""
    d = strategy.degrees
    found = list(rules(Reading.of(graph, strategy)))

    def plan_of(expert: bool) -> dict[str, str]:
        chosen: list[Rule] = [r for r in found if r.expert is expert]
        return {r.name: r.style for r in chosen if r.style is not None}

    experts = plan_of(True)
    return {
        "tp_size": d.tp,
        "tp_plan": plan_of(False) if d.tp > 1 else None,
        "ep_size": d.ep if experts else 1,
        "ep_plan": experts or None,
        "ep_implementation": ("all_to_all" if strategy.exchange else "all_reduce") if experts else "auto",
        "fsdp_size": 1,
        "pp_size": 1,
    }


def strategy_at(graph: OpGraph, degrees: Degrees) -> Strategy | None:
    """Megatron's choices as far as styles say them: whole latents, whole attention where kv heads do not spread."""
    if degrees.pp > 1 or degrees.dp > 1 or (degrees.ep > 1 and degrees.etp > 1):
        return None
    base = pattern_strategy(graph, degrees, "megatron")
    chosen = dict(base.choices)
    sizes = axis_sizes(mesh_of(graph, degrees))
    for block in graph.components():
        core = {op.name for op in block.ops if op.kind == "attention"} if sizes["tp_rep"] > 1 else set()
        for op in block.ops:
            near_core = op.name in core or core & set(op.inputs)
            feeds_core = any(op.name in reader.inputs for reader in block.ops if reader.name in core)
            routed_bias = op.kind == "experts" and any(p.role == "bias" for p in op.params)
            if near_core or feeds_core or (routed_bias and degrees.etp > 1):
                chosen[choice_key(graph, block, op)] = None
    changed = replace(base, choices=tuple(chosen.items()))
    return changed if not reasons(graph, changed) else None


def write(plan: PlanData) -> Export:
    """The config as JSON and a script that loads a checkpoint with it."""
    d = plan.degrees
    config = distributed_config(plan.graph, plan.strategy)
    script = _SCRIPT.format(
        model=plan.model.name,
        version=VERSION,
        ranks=d.num_devices,
        replicas="" if d.replicas == 1 else f", the plan has {d.replicas} replicas",
        class_name=plan.graph.model_class,
        dtype=plan.graph.dtype,
    )
    notes = [] if d.replicas == 1 else [f"the plan is {d.replicas} replicas; start the command once for each"]
    if plan.workload.dtype != plan.graph.dtype:
        notes.append(f"planned for {plan.workload.dtype}; load.py loads the checkpoint in {plan.graph.dtype}")
    return Export(
        target="transformers",
        version=f"transformers {VERSION}",
        command=f"torchrun --nproc-per-node {d.num_devices} load.py CHECKPOINT_FOLDER",
        files=(
            ExportedFile(name="distributed_config.json", text=json.dumps(config, indent=1) + "\n"),
            ExportedFile(name="load.py", text=script),
        ),
        notes=tuple(notes),
    )


TARGET = Target(
    name="transformers",
    version=f"transformers {VERSION}",
    reasons=reasons,
    strategy=strategy_at,
    write=write,
    # How classes split their operators unless they are told otherwise; the exported styles tell all of them.
    settles=frozenset({"heads % tp", "kv_heads % tp", "dense intermediate % tp", "shared intermediate % tp"}),
)
