"""Tiny checkpoints as transformers writes them, with the logits of the unsharded model beside them."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
import transformers

from autoshard import Plan, autoshard
from autoshard.export import TARGETS, save
from autoshard.tracing.weights import fill_random

_SIZES: dict[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 128,
    "intermediate_size": 96,
    "tie_word_embeddings": False,
    "pad_token_id": 0,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "mixtral": ("MixtralForCausalLM", {"num_local_experts": 8, "num_experts_per_tok": 2}),
    "qwen3_moe": (
        "Qwen3MoeForCausalLM",
        {"moe_intermediate_size": 48, "head_dim": 16, "num_experts": 8, "num_experts_per_tok": 2},
    ),
    "deepseek_v3": (
        "DeepseekV3ForCausalLM",
        {
            "num_key_value_heads": 8,
            "moe_intermediate_size": 32,
            "n_routed_experts": 8,
            "n_shared_experts": 1,
            "num_experts_per_tok": 2,
            "n_group": 2,
            "topk_group": 1,
            "q_lora_rank": 24,
            "kv_lora_rank": 16,
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 12,
            "v_head_dim": 16,
            "first_k_dense_replace": 1,
        },
    ),
    "gpt_oss": (
        "GptOssForCausalLM",
        {"num_local_experts": 8, "num_experts_per_tok": 2, "head_dim": 16, "sliding_window": 8},
    ),
}


def build(family: str, *, seed: int = 1, **changed: Any) -> torch.nn.Module:
    """A tiny model of a family with random weights, biases and sinks included."""
    name, fields = FAMILIES[family]
    cls = getattr(transformers, name)
    config = cls.config_class(**{**_SIZES, **fields, **changed}, architectures=[name])
    model: torch.nn.Module = cls._from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    fill_random(model, seed)
    return model


@torch.no_grad()
def write_checkpoint(model: Any, folder: Path, *, sequences: int = 4) -> Path:
    """Save a model, a prompt of 7 tokens, two decode steps and its logits for them."""
    model.save_pretrained(folder, max_shard_size="100KB")
    generator = torch.Generator().manual_seed(5)
    ids = [torch.randint(256, (sequences, n), generator=generator) for n in (7, 1, 1)]
    cache = transformers.DynamicCache(config=model.config)
    logits = [model(input_ids=i, cache=cache, use_cache=True).logits for i in ids]
    torch.save({"ids": ids, "logits": logits}, folder / "expected.pt")
    return folder


def make_plan(model: Any, cluster: str, fix: str, pin: str) -> Plan:
    return autoshard(model, cluster, search="exact", fix=fix, pin=pin)


def export_job(plan: Plan, target: str, checkpoint: Path, folder: Path) -> dict[str, Any]:
    """Export a plan and say how ranks run it."""
    assert TARGETS[target].reasons(plan.graph, plan.strategy) == ()
    save(TARGETS[target].write(plan.data), folder)
    file = {"transformers": "load.py", "dtensor": "sharded_model.py"}[target]
    return {"target": target, "file": str(folder / file), "checkpoint": str(checkpoint), "dp": plan.degrees.dp}


def run_ranks(jobs: list[dict[str, Any]], nproc: int, folder: Path) -> list[list[dict[str, Any]]]:
    """Results of every job on every rank."""
    path = folder / "jobs.json"
    path.write_text(json.dumps(jobs))
    ranks = Path(__file__).with_name("ranks.py")
    # -I: neither PYTHONPATH nor the current folder, so that autoshard cannot be found even by accident.
    done = subprocess.run(
        [sys.executable, "-I", str(ranks), str(path), str(nproc)],
        check=False,
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "HF_HUB_OFFLINE": "1"},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    by_rank = [json.loads(Path(f"{path}.{r}").read_text()) for r in range(nproc)]
    return [[rank[i] for rank in by_rank] for i in range(len(jobs))]
