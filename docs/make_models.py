"""Writes docs/models.md: every model of the catalogue, any configs given, and every MoE architecture of transformers.

``python docs/make_models.py [CONFIG.json ...]`` traces each from its real definition at full size. Times are CPU
seconds of building and tracing on the machine that ran it.
"""

import os
import sys
import time
from pathlib import Path
from typing import Any

from autoshard_models.published import ACTIVE_BILLIONS
from transformers import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CAUSAL_LM

from autoshard.api.models import graph_of, source_of
from autoshard.catalogue import entries
from autoshard.errors import AutoshardError
from autoshard.ir import Embedding, Linear, OpGraph
from autoshard.tracing import resolve, trace_source
from autoshard.tracing.config_check import one_line, quiet_transformers

os.environ["AUTOSHARD_CACHE"] = "off"  # times are of tracing

HEAD = """# Models

Made by `python docs/make_models.py`: do not edit. Parameters are the text decoder's, counted from its real class.
FLOPs are per token without attention's part, two per multiply-add, as a serving engine spends them; KV bytes per
token over all layers in bfloat16, before any window, keys that are the values once; state bytes per sequence. Opaque is
the largest of the shares of FLOPs, of parameters and of cache and state bytes (at 4096 tokens) that the tracer does not
understand. Trace is CPU seconds for building and tracing at full size.

| model | class | parameters | active | GFLOP/token | KV B/token | state B/seq. | kinds of block | opaque | trace s |
|---|---|---:|---:|---:|---:|---:|---|---:|---:|
"""


ACTIVE = """
## Active parameters against what publishers say

`active` above counts every weight a token passes, the embedding table in full. Publishers count it so, or without the
table (a token reads one row of it), or without the head as well: the nearest of the three is compared.

| model | published | all | without table | without table and head | nearest is off by |
|---|---:|---:|---:|---:|---:|
"""

ARCHITECTURES = """
## Every mixture of experts in transformers

All causal language models of transformers whose config has experts, each at the sizes its config class gives when
nothing is said, or at published ones (marked *) where those make no model. `exact` says whether the graph's parameters
are those of the class. Opaque shares are of FLOPs, parameters, and cache and state bytes.

| architecture | class | parameters | exact | active | FLOPs opaque | parameters | state | kinds | trace s |
|---|---|---:|---|---:|---:|---:|---:|---:|---:|
"""

PUBLISHED_SIZES: dict[str, dict[str, Any]] = {
    # huggingface.co/databricks/dbrx-base
    "dbrx": {
        "d_model": 6144,
        "n_heads": 48,
        "n_layers": 40,
        "vocab_size": 100352,
        "attn_config": {"kv_n_heads": 8, "clip_qkv": 8, "rope_theta": 500000.0},
        "ffn_config": {"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4},
    },
    # huggingface.co/deepseek-ai/DeepSeek-V2
    "deepseek_v2": {
        "hidden_size": 5120,
        "num_hidden_layers": 60,
        "num_attention_heads": 128,
        "num_key_value_heads": 128,
        "intermediate_size": 12288,
        "moe_intermediate_size": 1536,
        "n_routed_experts": 160,
        "n_shared_experts": 2,
        "num_experts_per_tok": 6,
        "first_k_dense_replace": 1,
        "n_group": 8,
        "topk_group": 3,
        "topk_method": "group_limited_greedy",
        "vocab_size": 102400,
    },
    # huggingface.co/rednote-hilab/dots.llm1.base
    "dots1": {
        "hidden_size": 4096,
        "num_hidden_layers": 62,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "head_dim": 128,
        "intermediate_size": 10944,
        "moe_intermediate_size": 1408,
        "n_routed_experts": 128,
        "n_shared_experts": 2,
        "num_experts_per_tok": 6,
        "first_k_dense_replace": 1,
        "n_group": 1,
        "topk_group": 1,
        "vocab_size": 152064,
    },
    # huggingface.co/google/gemma-4-26B-A4B
    "gemma4_text": {
        "hidden_size": 2816,
        "num_hidden_layers": 30,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "intermediate_size": 2112,
        "head_dim": 256,
        "enable_moe_block": True,
        "num_experts": 128,
        "top_k_experts": 8,
        "moe_intermediate_size": 704,
        "hidden_size_per_layer_input": 0,
        "layer_types": None,
    },
    # huggingface.co/zai-org/GLM-4.5
    "glm4_moe": {"head_dim": 128},
    # huggingface.co/ibm-granite/granite-4.0-h-small
    "granitemoehybrid": {
        "hidden_size": 4096,
        "num_hidden_layers": 40,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "num_local_experts": 72,
        "num_experts_per_tok": 10,
        "intermediate_size": 768,
        "shared_intermediate_size": 1536,
        "mamba_n_heads": 128,
        "mamba_d_head": 64,
        "mamba_d_state": 128,
        "vocab_size": 100352,
        "layer_types": ["full_attention" if i in (5, 15, 25, 35) else "mamba" for i in range(40)],
    },
    # huggingface.co/tencent/Hunyuan-A13B-Instruct
    "hunyuan_v1_moe": {
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": 3072,
        "num_experts": 64,
        "moe_topk": 8,
        "vocab_size": 128167,
    },
    # huggingface.co/LiquidAI/LFM2-8B-A1B
    "lfm2_moe": {
        "hidden_size": 2048,
        "num_hidden_layers": 24,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 7168,
        "moe_intermediate_size": 1792,
        "num_experts": 32,
        "num_experts_per_tok": 4,
        "num_dense_layers": 2,
        "vocab_size": 65536,
        "layer_types": ["full_attention" if i in (2, 6, 10, 14, 18, 21) else "conv" for i in range(24)],
    },
}
"""Sizes of architectures whose config class gives none that make a mixture of experts."""


def opaque_shares(graph: OpGraph) -> tuple[float, float, float]:
    """Opaque shares of FLOPs, parameters, and cache and state bytes."""
    opaque = [(b.repeat, op) for b, op in graph.all_ops() if op.kind == "opaque"]
    return (
        sum(n * op.flops(1.0) for n, op in opaque) / graph.flops(1.0),
        sum(n * op.num_parameters for n, op in opaque) / graph.num_parameters,
        graph.opaque_state_share(),
    )


def percent(share: float) -> str:
    """A share for a table."""
    return f"{share:.3%}" if share else "0"


def row(name: str, graph: OpGraph, seconds: float) -> str:
    """One line of the first table."""
    blocks = ", ".join(f"{b.repeat} {b.name}" for b in graph.blocks)
    cells = [
        name,
        graph.model_class,
        f"{graph.num_parameters:,}",
        f"{graph.num_active_parameters / 1e9:.2f} B",
        f"{graph.flops(1.0) / 1e9:.2f}",
        f"{graph.kv_bytes_per_token():,.0f}",
        f"{graph.state_bytes_per_sequence():,.0f}",
        blocks,
        percent(max(opaque_shares(graph))),
        f"{seconds:.1f}",
    ]
    return f"| {' | '.join(cells)} |\n"


def active_row(name: str, graph: OpGraph) -> str:
    """One line of the table of published active parameters."""
    active = graph.num_active_parameters / 1e9
    table = sum(op.num_parameters for _, op in graph.all_ops() if isinstance(op, Embedding)) / 1e9
    head = (
        sum(op.in_dim.size * op.out_dim.size for _, op in graph.all_ops() if isinstance(op, Linear) and op.is_head)
        / 1e9
    )
    tied = any(p.shared_with for _, op in graph.all_ops() if isinstance(op, Linear) and op.is_head for p in op.params)
    counts = [active, active if tied else active - table, active - (table if tied else table + head)]
    said = ACTIVE_BILLIONS[name]
    nearest = min(counts, key=lambda n: abs(n - said))
    cells = [name, f"{said} B", *(f"{n:.2f} B" for n in counts), f"{nearest / said - 1:+.1%}"]
    return f"| {' | '.join(cells)} |\n"


def architecture_row(model_type: str, class_name: str) -> str | None:
    """One line of the last table; None for an architecture without experts."""
    config_class = CONFIG_MAPPING[model_type]
    fields = {*getattr(config_class, "__dataclass_fields__", ()), *config_class.attribute_map}
    if model_type not in PUBLISHED_SIZES and not any("expert" in f or f.startswith("moe") for f in fields):
        return None
    name = model_type + ("*" if model_type in PUBLISHED_SIZES else "")
    start = time.process_time()
    try:
        with quiet_transformers():
            config = config_class().to_dict()
        config = {
            **config,
            **PUBLISHED_SIZES.get(model_type, {}),
            "model_type": model_type,
            "architectures": [class_name],
        }
        source = resolve(config)
        held = sum(p.numel() for p in source.build().parameters())
        graph = trace_source(source)
    except Exception as error:  # a class that its own defaults do not build either
        return f"| {name} | {class_name} | {one_line(error)[:160]} | | | | | | | |\n"
    cells = [
        name,
        class_name,
        f"{held:,}",
        "yes" if held == graph.num_parameters else "no",
        f"{graph.num_active_parameters / 1e9:.2f} B",
        *map(percent, opaque_shares(graph)),
        str(len(graph.blocks)),
        f"{time.process_time() - start:.1f}",
    ]
    return f"| {' | '.join(cells)} |\n"


def main() -> None:
    """Trace everything and write the file."""
    out = Path(__file__).parent / "models.md"
    lines, published, others = [], [], []
    for model in [*(e.name for e in entries()), *sys.argv[1:]]:
        start = time.process_time()
        try:
            source = source_of(model)
            graph = graph_of(model, source)
            lines.append(row(source.name, graph, time.process_time() - start))
            if model in ACTIVE_BILLIONS:
                published.append(active_row(model, graph))
        except AutoshardError as error:
            lines.append(f"| {Path(model).stem} | {error} | | | | | | | | |\n")
        print(lines[-1], end="", file=sys.stderr, flush=True)
    seen: set[str] = set()
    for model_type, names in sorted(CAUSAL_LM.items()):
        class_name = names if isinstance(names, str) else names[0]
        line = None if class_name in seen else architecture_row(model_type, class_name)
        if line is not None:
            seen.add(class_name)
            others.append(line)
            print(line, end="", file=sys.stderr, flush=True)
    text = HEAD + "".join(lines) + ACTIVE + "".join(published) + ARCHITECTURES + "".join(others)
    out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
