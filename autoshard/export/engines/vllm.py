"""vLLM: ``vllm serve`` with a YAML config.

Experts form one group of dp·tp ranks: split by tensor, or by expert with ``--enable-expert-parallel``
[https://docs.vllm.ai/en/v0.12.0/serving/data_parallel_deployment/]; nothing in between.
"""

from autoshard.export.artifact import Export, ExportedFile
from autoshard.export.engines import launch
from autoshard.export.engines.pattern import Engine
from autoshard.export.target import Target
from autoshard.ir import OpGraph
from autoshard.plan import PlanData
from autoshard.sharding import Degrees
from autoshard.sharding.legality import expert_counts

VERSION = f"vLLM {launch.version_of('vllm')}"
_WEIGHTS = {
    "bfloat16": {"dtype": "bfloat16"},
    "float16": {"dtype": "float16"},
    "float8_e4m3fn": {"dtype": "bfloat16", "quantization": "fp8"},
}
_KV = {"bfloat16": None, "float16": None, "float8_e4m3fn": "fp8_e4m3", "float8_e5m2": "fp8_e5m2"}


def degrees_reasons(graph: OpGraph, d: Degrees) -> tuple[str, ...]:
    """Degrees that vLLM has no flags for."""
    if expert_counts(graph) and d.ep > 1 and d.etp > 1:
        return (f"ep={d.ep} with etp={d.etp}: its experts are split by expert over all dp*tp={d.group} ranks or none",)
    return ()


def write(plan: PlanData) -> Export:
    """Config and command of one replica."""
    d = plan.degrees
    weights, kv = launch.dtype_flags(plan, _WEIGHTS, _KV, VERSION)
    longest, tokens = launch.lengths(plan)
    nodes, per_node = launch.nodes_of(plan), plan.cluster.devices_per_node
    spread = nodes > 1 and d.dp > 1 and per_node % (d.tp * d.pp) == 0
    config = launch.checked(
        "vllm",
        {
            "tensor-parallel-size": d.tp,
            "pipeline-parallel-size": d.pp,
            "data-parallel-size": d.dp,
            "data-parallel-size-local": per_node // (d.tp * d.pp) if spread else None,
            "enable-expert-parallel": d.ep > 1 and bool(expert_counts(plan.graph)),
            "distributed-executor-backend": "ray" if nodes > 1 and not spread else None,
            "max-num-seqs": d.batch // d.dp,
            "max-num-batched-tokens": max(tokens, 2048),
            "max-model-len": longest,
            "gpu-memory-utilization": 0.9,
            **weights,
            "kv-cache-dtype": kv,
        },
    )
    uneven = launch.uneven_stages(plan)
    environment = launch.checked("vllm", {"VLLM_PP_LAYER_PARTITION": uneven}, "env:")
    where = ""
    notes = list(launch.notes_of(plan, "--all2all-backend"))
    if spread:
        flags = launch.checked("vllm", {"data-parallel-address": '"$HEAD_IP"', "data-parallel-rpc-port": 13345})
        others = launch.checked("vllm", {"headless": True, "data-parallel-start-rank": '"$START_RANK"'})
        where = (
            " \\\n"
            + launch.command_line(flags)
            + " ${START_RANK:+"
            + " ".join(f"--{k}" if v is True else f"--{k} {v}" for k, v in others.items())
            + "}"
        )
        notes.append(
            f"{nodes} nodes: set HEAD_IP everywhere, START_RANK (first dp rank of the node) on all but the first"
        )
    elif nodes > 1:
        notes.append(f"{nodes} nodes: join them in one Ray cluster first, then run the command on its head")
    body = f'vllm serve "$MODEL" --config config.yaml{where}'
    return Export(
        target="vllm",
        version=VERSION,
        command="./launch.sh MODEL",
        files=(
            ExportedFile(name="config.yaml", text=launch.yaml_text(config, f"for {VERSION}, by autoshard")),
            launch.script(VERSION, plan, body, environment),
        ),
        notes=tuple(notes),
    )


ENGINE = Engine(title=VERSION, degrees=degrees_reasons)
TARGET = Target(name="vllm", version=VERSION, reasons=ENGINE.reasons, strategy=ENGINE.strategy, write=write)
