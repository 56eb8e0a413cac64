"""``autoshard reshard``."""

from typing import Annotated

import typer

from autoshard.cli import options as o
from autoshard.cli.model import traced
from autoshard.cli.terminal import progress, show, show_json
from autoshard.workload import Workload


def reshard(
    model: o.Model,
    cluster: o.Cluster = o.CLUSTER,
    isl: o.Isl = None,
    osl: o.Osl = None,
    requests: Annotated[
        int | None, typer.Option(help="Requests between two re-shardings at most; as many as fit by default.")
    ] = None,
    dtype: o.Dtype = "bf16",
    kv_dtype: o.KvDtype = "bf16",
    json: o.Json = False,
) -> None:
    """Two layouts over the same GPUs, for prompts and for answers, beside the best single one; simulated only."""
    workload = Workload(phase="serve", isl=isl, osl=osl, dtype=dtype, kv_dtype=kv_dtype)
    with progress() as tell:
        tell("importing torch")
        from autoshard.api.reshard import reshard as compute
        from autoshard.hardware import parse_cluster

        where = parse_cluster(cluster)
        graph = traced(model, tell)
        data = compute(graph, where, workload, requests=requests, progress=tell)
    if json:
        show_json(data)
        return
    from autoshard.cli.views.reshard import view

    show(*view(data))
