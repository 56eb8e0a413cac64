"""TensorRT-LLM: ``trtllm-serve`` with a YAML file of LLM options.

``--tp_size`` counts all ranks of a stage; experts have ``moe_tensor_parallel_size * moe_expert_parallel_size`` of
them. Attention is data parallel over all of them or not at all (``enable_attention_dp``), and layers are spread evenly
over stages [parallel-strategy.html and serve.py in ``flags.json``].
"""

from autoshard.export.artifact import Export, ExportedFile
from autoshard.export.engines import launch
from autoshard.export.engines.pattern import Engine
from autoshard.export.target import Target
from autoshard.ir import OpGraph
from autoshard.plan import PlanData
from autoshard.sharding import Degrees
from autoshard.sharding.legality import expert_counts

VERSION = f"TensorRT-LLM {launch.version_of('trtllm')}"
_WEIGHTS = {"bfloat16": "bfloat16", "float16": "float16", "float8_e4m3fn": "auto"}
_KV = {"bfloat16": "auto", "float16": "auto", "float8_e4m3fn": "fp8"}


def degrees_reasons(graph: OpGraph, d: Degrees) -> tuple[str, ...]:
    """Degrees that TensorRT-LLM has no options for."""
    found = []
    if d.dp > 1 and not expert_counts(graph):
        found.append(f"dp={d.dp} on a dense model: start replicas instead")
    elif d.dp > 1 and d.tp > 1:
        found.append(f"dp={d.dp} with tp={d.tp}: attention is data parallel over all {d.group} ranks or none")
    if len(graph.layers) % d.pp:
        found.append(f"pp={d.pp}: {len(graph.layers)} layers do not spread evenly and their split cannot be set")
    return tuple(found)


def write(plan: PlanData) -> Export:
    """Options and command of one replica."""
    d = plan.degrees
    dtype, kv = launch.dtype_flags(plan, _WEIGHTS, _KV, VERSION)
    longest, tokens = launch.lengths(plan)
    routed = bool(expert_counts(plan.graph))
    flags = launch.checked(
        "trtllm",
        {
            "backend": "pytorch",
            "tp_size": d.group,
            "pp_size": d.pp,
            "ep_size": d.ep if routed else None,
            "gpus_per_node": min(plan.cluster.devices_per_node, d.num_devices),
            "max_batch_size": d.batch // d.dp,
            "max_num_tokens": max(tokens, 2048),
            "max_seq_len": longest,
            "free_gpu_memory_fraction": 0.9,
            "config": "llm_options.yaml",
        },
    )
    options = launch.checked(
        "trtllm",
        {
            "moe_expert_parallel_size": d.ep if routed else None,
            "moe_tensor_parallel_size": d.etp if routed else None,
            "enable_attention_dp": d.dp > 1,
            "dtype": dtype,
            "kv_cache_config": {"dtype": kv},
        },
        "yaml:",
    )
    nodes = launch.nodes_of(plan)
    notes = list(launch.notes_of(plan))
    start = "trtllm-serve"
    if nodes > 1:
        start = f"mpirun -n {d.num_devices} trtllm-llmapi-launch trtllm-serve"
        notes.append(f"{nodes} nodes: give mpirun (or srun) their hosts")
    if plan.workload.dtype == "float8_e4m3fn":
        notes.append("fp8: MODEL must be a checkpoint that is quantised to fp8")
    body = f'{start} "$MODEL" \\\n' + launch.command_line(flags)
    return Export(
        target="trtllm",
        version=VERSION,
        command="./launch.sh MODEL",
        files=(
            ExportedFile(name="llm_options.yaml", text=launch.yaml_text(options, f"for {VERSION}, by autoshard")),
            launch.script(VERSION, plan, body, {}),
        ),
        notes=tuple(notes),
    )


ENGINE = Engine(title=VERSION, degrees=degrees_reasons)
TARGET = Target(name="trtllm", version=VERSION, reasons=ENGINE.reasons, strategy=ENGINE.strategy, write=write)
