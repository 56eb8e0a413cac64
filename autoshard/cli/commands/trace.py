"""``autoshard trace``."""

import time

from autoshard.cli import options as o
from autoshard.cli.model import use_working_directory
from autoshard.cli.terminal import progress, show, show_json
from autoshard.workload.workload import normalise_dtype


def trace(model: o.Model, kv_dtype: o.KvDtype = "bf16", json: o.Json = False) -> None:
    """Show the fused operators of a model: FLOPs, bytes, dims, repeats, parameters."""
    start = time.perf_counter()
    cached = normalise_dtype(kv_dtype)
    with progress() as tell:
        tell("importing torch")
        from autoshard.api.describe_model import describe_graph
        from autoshard.api.models import graph_of, source_of
        from autoshard.tracing.facts import config_facts
        from autoshard.tracing.trace import is_traced

        use_working_directory(model)
        source = source_of(model)
        kept = is_traced(source)
        tell(f"{'reading' if kept else 'tracing'} {source.name}")
        graph = graph_of(model, source)
        data = describe_graph(graph, kv_dtype=cached) | config_facts(source, graph)
    data["kept"] = kept
    data["seconds"] = time.perf_counter() - start
    if json:
        show_json(data)
        return
    from autoshard.cli.views.trace import view

    show(*view(data))
