"""Peak memory of loading a sharded checkpoint under a plan: ``python benchmarks/load_checkpoint.py [--gigabytes 20]``.

Writes a synthetic Mixtral in the form it was published in (a tensor per expert, files of at most 5 GB) as sparse files,
plans it on 4 ranks and loads it on every rank. ``--at-once 4`` runs the ranks together over gloo and needs the whole
model's memory; ``--at-once 1`` runs the ranks of the same world one after the other. Prints, per rank, the shard, the
bytes read, and the peak of resident memory above what the process had with the model on meta and the plan applied.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RANKS = 4
LAYER_GB = 2.9
FILE_BYTES = 5_000_000_000


def config(layers: int):
    from transformers import MixtralConfig

    return MixtralConfig(num_hidden_layers=layers, tie_word_embeddings=False, architectures=["MixtralForCausalLM"])


def meta_model(layers: int):
    import torch
    from transformers import MixtralForCausalLM

    with torch.device("meta"):
        return MixtralForCausalLM._from_config(config(layers), dtype=torch.bfloat16).eval()


def published_names(model):
    """Tensors under their published names: experts apart, gate and up apart."""
    for name, p in model.state_dict().items():
        old = name.replace(".mlp.", ".block_sparse_moe.")
        if name.endswith("experts.gate_up_proj"):
            for e in range(p.shape[0]):
                for w in ("w1", "w3"):
                    yield f"{old.removesuffix('gate_up_proj')}{e}.{w}.weight", (p.shape[1] // 2, p.shape[2])
        elif name.endswith("experts.down_proj"):
            for e in range(p.shape[0]):
                yield f"{old.removesuffix('down_proj')}{e}.w2.weight", tuple(p.shape[1:])
        else:
            yield old, tuple(p.shape)


def write_sparse(model, folder: Path) -> int:
    """Safetensors files whose data are holes; returns their bytes."""
    groups, size = [{}], 0
    for name, shape in published_names(model):
        num_bytes = 2
        for n in shape:
            num_bytes *= n
        if size + num_bytes > FILE_BYTES:
            groups.append({})
            size = 0
        groups[-1][name] = {"dtype": "BF16", "shape": shape, "data_offsets": [size, size + num_bytes]}
        size += num_bytes
    total, index = 0, {}
    for i, group in enumerate(groups):
        file = f"model-{i + 1:05d}-of-{len(groups):05d}.safetensors"
        header = json.dumps(group).encode()
        end = max(t["data_offsets"][1] for t in group.values())
        with open(folder / file, "wb") as out:
            out.write(len(header).to_bytes(8, "little") + header)
            out.truncate(8 + len(header) + end)
        total += end
        index |= dict.fromkeys(group, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    return total


def status(key: str) -> int:
    """Bytes of a line of /proc/self/status."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) * 1024
    raise KeyError(key)


def load_on_rank(rank: int, layers: int, folder: Path, together: bool) -> None:
    import torch
    import torch.distributed as dist

    from autoshard import Plan

    torch.set_num_threads(1)
    if together:
        store = f"file://{folder}/store"
        dist.init_process_group("gloo", init_method=store, rank=rank, world_size=RANKS)
    else:
        from autoshard._torch import FakeStore

        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=RANKS)
    plan = Plan.load(folder / "plan.json")
    model = meta_model(layers)
    mesh = plan.device_mesh("cpu")
    plan.apply(model, mesh)
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts here
    before, start = status("VmRSS"), time.perf_counter()
    report = plan.load_weights(model, mesh, folder)
    peak = status("VmHWM") - before
    print(
        f"rank {rank}: shard {report.shard_bytes / 1e9:.3f} GB, read {report.read_bytes / 1e9:.3f} GB of"
        f" {report.num_files} files in {time.perf_counter() - start:.1f} s, peak {peak / 1e9:.3f} GB above"
        f" {before / 1e9:.2f} GB = {100 * peak / report.shard_bytes:.1f} % of the shard",
        flush=True,
    )
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=20.0)
    parser.add_argument("--fix", default="tp=4,ep=2,dp=1,pp=1")
    parser.add_argument("--at-once", type=int, choices=(1, RANKS), default=1)
    parser.add_argument("--rank", type=int)
    parser.add_argument("--folder", type=Path)
    args = parser.parse_args()
    layers = max(1, round(args.gigabytes / LAYER_GB))
    if args.rank is not None:
        load_on_rank(args.rank, layers, args.folder, args.at_once > 1)
        return
    from autoshard import autoshard

    folder = Path(tempfile.mkdtemp(prefix="autoshard-load-"))
    try:
        model = meta_model(layers)
        total = write_sparse(model, folder)
        pin = "q=0,k=0,v=0,attention=0,o=1,experts_up=0,experts_down=1"
        plan = autoshard(model, f"H100x{RANKS}", search="exact", fix=args.fix, pin=pin)
        plan.save(folder / "plan.json")
        print(f"{total / 1e9:.2f} GB in {layers} layers; {plan}", flush=True)
        again = [*sys.argv, "--folder", str(folder)]
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
        for first in range(0, RANKS, args.at_once):
            started = [
                subprocess.Popen([sys.executable, *again, "--rank", str(r)], env=environment)
                for r in range(first, first + args.at_once)
            ]
            if any(p.wait() for p in started):
                raise SystemExit("a rank failed")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
