"""SGLang: ``python -m sglang.launch_server`` with a YAML config.

Attention data parallelism lies inside tp: ``--tp-size`` counts all ranks of a stage, attention has ``tp-size/dp-size``
of them, experts ``--ep-size`` groups of ``tp-size/ep-size``. Dense FFNs then run on all ranks or, with
``--moe-dense-tp-size 1``, whole on each [server_arguments.md and dp_dpa_router_guide.md in ``flags.json``].
"""

from autoshard.export.artifact import Export, ExportedFile
from autoshard.export.engines import launch
from autoshard.export.engines.pattern import Engine
from autoshard.export.target import Target
from autoshard.ir import Activation, OpGraph
from autoshard.plan import PlanData
from autoshard.sharding import Degrees
from autoshard.sharding.legality import expert_counts

VERSION = f"SGLang {launch.version_of('sglang')}"
_WEIGHTS = {
    "bfloat16": {"dtype": "bfloat16"},
    "float16": {"dtype": "float16"},
    "float8_e4m3fn": {"dtype": "bfloat16", "quantization": "fp8"},
}
_KV = {"bfloat16": None, "float16": None, "float8_e4m3fn": "fp8_e4m3", "float8_e5m2": "fp8_e5m2"}


def degrees_reasons(graph: OpGraph, d: Degrees) -> tuple[str, ...]:
    """Degrees that SGLang has no flags for."""
    if d.dp == 1:
        return ()
    if not expert_counts(graph):
        return (f"dp={d.dp} on a dense model: its data parallelism there is separate replicas",)
    dense = any(isinstance(op, Activation) and not op.routed for _, op in graph.all_ops())
    if d.tp > 1 and dense:
        return (f"dp={d.dp} with tp={d.tp}: dense FFNs run on all {d.group} ranks of a stage or whole on each",)
    return ()


def write(plan: PlanData) -> Export:
    """Config and command of one replica."""
    d = plan.degrees
    weights, kv = launch.dtype_flags(plan, _WEIGHTS, _KV, VERSION)
    longest, tokens = launch.lengths(plan)
    nodes = launch.nodes_of(plan)
    attention = d.dp > 1
    config = launch.checked(
        "sglang",
        {
            "tp-size": d.group,
            "pp-size": d.pp,
            "enable-dp-lm-head": attention,
            "moe-dense-tp-size": 1 if attention and d.tp == 1 else None,
            "ep-size": d.ep if expert_counts(plan.graph) else None,
            "max-running-requests": d.batch,
            "chunked-prefill-size": max(tokens, 2048),
            "context-length": longest,
            "mem-fraction-static": 0.88,
            **weights,
            "kv-cache-dtype": kv,
        },
    )
    environment = launch.checked("sglang", {"SGLANG_PP_LAYER_PARTITION": launch.uneven_stages(plan)}, "env:")
    notes = list(launch.notes_of(plan, "--moe-a2a-backend"))
    more = ""
    if nodes > 1:
        across = {"nnodes": nodes, "node-rank": '"$NODE_RANK"', "dist-init-addr": '"$HEAD_IP:5000"'}
        more = " \\\n" + launch.command_line(launch.checked("sglang", across))
        notes.append(f"{nodes} nodes: run it on each with HEAD_IP and NODE_RANK (0 to {nodes - 1}) set")
    # On the command line: late 0.5 versions refuse the second in a config file (it is a spelling of --attn-dp-size).
    given = {"dp-size": d.dp, "enable-dp-attention": True} if attention else {}
    path = launch.checked("sglang", {"model-path": '"$MODEL"', "config": "config.yaml", **given})
    body = "python -m sglang.launch_server \\\n" + launch.command_line(path) + more
    return Export(
        target="sglang",
        version=VERSION,
        command="./launch.sh MODEL",
        files=(
            ExportedFile(name="config.yaml", text=launch.yaml_text(config, f"for {VERSION}, by autoshard")),
            launch.script(VERSION, plan, body, environment),
        ),
        notes=tuple(notes),
    )


ENGINE = Engine(title=VERSION, degrees=degrees_reasons)
TARGET = Target(name="sglang", version=VERSION, reasons=ENGINE.reasons, strategy=ENGINE.strategy, write=write)
