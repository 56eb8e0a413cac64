"""Greedy generation on real ranks: ``python -m tests.emit.generate_ranks OUT NPROC POINTS MODEL ...``.

The process imports everything once and forks the ranks; every rank writes what it found to ``OUT/rank<N>.json``.
"""

import copy
import json
import sys
import uuid
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
from torch.distributed.pipelining import ScheduleGPipe

from autoshard import catalogue
from autoshard.emit import apply, device_mesh, pipeline_stage
from autoshard.sharding import Degrees, degree_reasons, mesh_of
from autoshard.sharding.patterns import pattern_strategy
from autoshard.tracing import trace

SEQUENCES, PROMPT, NEW = 4, 5, 20
POINTS = {
    "tp": Degrees(tp=4, etp=4),
    "ep": Degrees(tp=4, ep=4),
    "attention_dp_ep": Degrees(dp=2, tp=2, ep=4, batch=2),
    "attention_dp_ep_x_etp": Degrees(dp=4, ep=2, etp=2, batch=4),
    "pp2_x_tp": Degrees(pp=2, tp=2, etp=2, batch=2),
    "pp2_x_dp": Degrees(pp=2, dp=2, ep=2, batch=4),
}


def run_model(name: str, meshes: dict[Any, Any], points: list[str]) -> dict[str, Any]:
    """Tokens of the unsharded and the sharded model at every point that is legal for it."""
    source = catalogue.find(name).reduced(tp=4, ep=4, etp=4, nproc=4)
    graph = trace(source.build(dtype="float32"), name=source.name)
    model = source.build(device="cpu", dtype="float32", seed=3, experts="eager")
    generator = torch.Generator().manual_seed(5)
    vocab = min(op.vocab.size for _, op in graph.all_ops() if op.kind == "embedding")
    ids = torch.randint(3, vocab, (SEQUENCES, PROMPT), generator=generator)
    # Some sequences end early (their end of sequence is a token they make), so that dp ranks do not finish together.
    want = generate(model, ids)
    end = int(want[0, PROMPT + 4])
    ended = generate(model, ids, end)
    found: dict[str, Any] = {"model": name, "distinct_tokens": len(set(want[:, PROMPT:].flatten().tolist()))}
    for point in points:
        degrees = POINTS[point]
        if degree_reasons(graph, pp=degrees.pp, dp=degrees.dp, tp=degrees.tp, ep=degrees.ep):
            continue
        key = (mesh_of(graph, degrees), degrees.pp)
        if key not in meshes:
            meshes[key] = device_mesh(graph, degrees, "cpu")
        strategy = pattern_strategy(graph, degrees, "megatron")
        sharded = apply(copy.deepcopy(model), graph, strategy, meshes[key])
        share, mine = SEQUENCES // degrees.dp, dist.get_rank() % degrees.group // degrees.tp
        part = slice(mine * share, (mine + 1) * share)
        got = generate(sharded, ids[part])
        stopped = generate(sharded, ids[part], end)
        length = stopped.shape[1]
        # Every rank has a seed of its own; the first one's counts.
        torch.manual_seed(dist.get_rank())
        sampled = generate(sharded, ids[part], sample=True)
        torch.manual_seed(0)
        agreed = degrees.dp > 1 or bool(torch.equal(sampled, generate(model, ids, sample=True)))
        if degrees.pp > 1:
            found[f"{point} ScheduleGPipe"] = run_schedule(sharded, model, ids[part])
        found[point] = {
            "equal": bool(torch.equal(got, want[part])),
            "equal_until_the_end": bool(torch.equal(stopped, ended[part][:, :length])),
            "length": length,
            "sampled": agreed,
        }
    return found


def run_schedule(sharded: Any, model: Any, ids: torch.Tensor) -> float | None:
    """Largest relative difference of logits that torch's own schedule makes of the stages; None where none come out."""
    stage = pipeline_stage(sharded)
    schedule = ScheduleGPipe(stage, n_microbatches=2)
    with torch.no_grad():
        out = schedule.step(ids) if stage.is_first else schedule.step()
        want = model(ids).logits
    return None if out is None else float((out - want).abs().max() / want.abs().max())


def generate(model: Any, ids: torch.Tensor, end: int | None = None, *, sample: bool = False) -> torch.Tensor:
    """Prompt and up to ``NEW`` tokens; ``end`` ends a sequence, which is then padded with zeros."""
    mask = torch.ones_like(ids)
    return model.generate(  # type: ignore[no-any-return]
        ids, max_new_tokens=NEW, do_sample=sample, eos_token_id=end, pad_token_id=0, attention_mask=mask
    )


def main(out: str, points: list[str], names: list[str]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    meshes: dict[Any, Any] = {}
    found = [run_model(name, meshes, points) for name in names]
    (Path(out) / f"rank{dist.get_rank()}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    out, nproc, chosen, *names = sys.argv[1:]
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=int(nproc),
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",
        local_addr="127.0.0.1",
        max_restarts=0,
        start_method="fork",
    )
    elastic_launch(config, main)(out, list(POINTS) if chosen == "all" else chosen.split(","), names)
