"""Ranks for exported files: ``python ranks.py JOBS.json NPROC``. Nothing of autoshard can be imported in here.

Every job names a file, a checkpoint folder and what the unsharded model said; every rank writes what it got.
"""

import importlib.util
import json
import os
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import transformers
from torch.distributed.tensor import DTensor

sys.modules["autoshard"] = None  # type: ignore[assignment]  # an environment without it


def module_at(path: str) -> Any:
    """The exported file as a module."""
    spec = importlib.util.spec_from_file_location("exported", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def sharded(job: dict[str, Any]) -> torch.nn.Module:
    exported = module_at(job["file"])
    options = {"dtype": torch.float32, "attn_implementation": "eager"}
    if job["target"] == "transformers":
        return exported.load(job["checkpoint"], **options)
    config = transformers.AutoConfig.from_pretrained(job["checkpoint"])
    model = getattr(transformers, config.architectures[0]).from_pretrained(job["checkpoint"], **options).eval()
    return exported.apply(model, exported.device_mesh("cpu"))


@torch.no_grad()
def run(job: dict[str, Any]) -> dict[str, Any]:
    model = sharded(job)
    seen = torch.load(Path(job["checkpoint"]) / "expected.pt", weights_only=True)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    share = len(seen["ids"][0]) // job["dp"]
    first = rank // (ranks // job["dp"]) * share
    cache, errors = transformers.DynamicCache(config=model.config), []
    for ids, want in zip(seen["ids"], seen["logits"], strict=True):
        got = model(input_ids=ids[first : first + share], cache=cache, use_cache=True).logits
        want = want[first : first + share]
        errors.append(float((got - want).abs().max() / want.abs().max()))
    local = [p.to_local() if isinstance(p, DTensor) else p for p in model.parameters()]
    whole = sum(p.numel() for p in model.parameters())
    return {"errors": errors, "held": sum(t.numel() for t in local), "whole": whole}


def work(rank: int, nproc: int, path: str, store: str) -> None:
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(nproc), LOCAL_WORLD_SIZE=str(nproc))
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=nproc)
    results = []
    for job in json.loads(Path(path).read_text()):
        try:
            results.append(run(job))
        except Exception as error:
            if os.environ.get("AUTOSHARD_DEBUG"):
                raise
            results.append({"exception": f"{type(error).__name__}: {error}"})
    Path(f"{path}.{rank}").write_text(json.dumps(results))
    dist.destroy_process_group()


def warm_up(path: str) -> None:
    """Import what ranks need before they fork, so that it is imported once."""
    import accelerate  # noqa: F401
    import transformers.distributed.tensor_parallel

    for job in json.loads(Path(path).read_text()):
        config = transformers.AutoConfig.from_pretrained(job["checkpoint"])
        model = getattr(transformers, config.architectures[0])(config)  # tiny
        model(input_ids=torch.zeros(1, 1, dtype=torch.long))


if __name__ == "__main__":
    warm_up(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        count = int(sys.argv[2])
        mp.start_processes(  # type: ignore[no-untyped-call]
            work, args=(count, sys.argv[1], f"{folder}/store"), nprocs=count, start_method="fork"
        )
