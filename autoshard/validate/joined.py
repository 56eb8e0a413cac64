"""Running as one rank of a job that torchrun has started, on any number of nodes, instead of starting ranks here.

Every rank calls `join` with the same job and gets the results of all of them.
"""

import faulthandler
import os
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from autoshard.errors import InvalidInputError
from autoshard.validate.job import Job
from autoshard.validate.worker import work

NEEDED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""What torchrun tells its processes."""


def world_size() -> int | None:
    """Ranks of the torchrun job that this process is one of; None outside of one."""
    return int(os.environ["WORLD_SIZE"]) if all(name in os.environ for name in NEEDED) else None


def is_first() -> bool:
    """Whether this process speaks for the job: the first rank, or the only process."""
    return world_size() is None or os.environ["RANK"] == "0"


def check_joined(nproc: int | None, simulate_ranks: int | None, device: str | None) -> int | None:
    """Ranks of the job, None outside of one.

    Raises:
        InvalidInputError: when other ranks are asked for, or a node has fewer GPUs than ranks.
    """
    world = world_size()
    if world is None:
        return None
    if simulate_ranks is not None:
        raise InvalidInputError(
            f"simulate_ranks={simulate_ranks} in a torchrun job of {world} ranks: every rank would simulate"
            " all of them; run it without torchrun"
        )
    if nproc not in (None, world):
        raise InvalidInputError(f"nproc={nproc} in a torchrun job of {world} ranks: leave it out, or give {world}")
    ranks, gpus = int(os.environ["LOCAL_WORLD_SIZE"]), torch.cuda.device_count()
    if device == "cuda" and ranks > gpus:
        raise InvalidInputError(
            f"{ranks} ranks on a node with {gpus} GPU{'s' * (gpus != 1)}: start torchrun with --nproc-per-node {gpus}"
        )
    return world


def join(job: Job) -> list[list[dict[str, Any]]]:
    """Run ``job`` as this process's rank; the results of every rank, in rank order, on each of them.

    A rank that is not done in the job's time ends its process, and torchrun then ends the others.
    """
    faulthandler.dump_traceback_later(job.timeout_s, exit=True)
    torch.set_num_threads(1)
    on_gpus = job.device == "cuda"
    if on_gpus:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    patience = timedelta(seconds=job.timeout_s)  # the first rank has more to do before
    own = not dist.is_initialized()  # a script may have made the group before it calls this
    if own:
        dist.init_process_group("nccl" if on_gpus else "gloo", timeout=patience)
    try:
        mine = work(job, job.device)
        found: list[list[dict[str, Any]]] = [[] for _ in range(dist.get_world_size())]
        dist.all_gather_object(found, mine, group=dist.new_group(backend="gloo", timeout=patience))
        return found
    finally:
        if own:
            dist.destroy_process_group()
        faulthandler.cancel_dump_traceback_later()
