"""The process that torchrun's machinery runs in: ``python -m autoshard.validate.elastic JOB.json NPROC``.

It imports torch, transformers and the models' code once and forks the ranks, which is most of the time of a small
validation saved. Nothing has computed in it and CUDA is untouched, so that forking is safe.
"""

import sys
import uuid

from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from autoshard.tracing import source_from_dict
from autoshard.validate.job import Job
from autoshard.validate.worker import main


def run(path: str, nproc: int) -> None:
    """Run the job at ``path`` on ``nproc`` ranks of this machine, over loopback."""
    with open(path) as file:
        job = Job.model_validate_json(file.read())
    for model in job.models:
        source_from_dict(model.source, trusted=True).build()  # on meta: imports the model's code
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=nproc,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",
        local_addr="127.0.0.1",
        max_restarts=0,
        start_method="fork",
    )
    elastic_launch(config, main)(path)


if __name__ == "__main__":
    run(sys.argv[1], int(sys.argv[2]))
