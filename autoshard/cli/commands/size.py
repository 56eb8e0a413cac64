"""``autoshard size``."""

from typing import Annotated

import typer

from autoshard.cli import options as o
from autoshard.cli.model import traced
from autoshard.cli.terminal import progress, show, show_json
from autoshard.workload import Workload


def size(
    model: o.Model,
    rate: Annotated[float, typer.Option(help="Tokens/s to reach (made in decode and serve, read in prefill).")],
    device: Annotated[str, typer.Option(help="A device that ships, or a cluster's YAML file.")] = "H100",
    phase: o.Phase = "decode",
    context: o.Context = 4096,
    isl: o.Isl = None,
    osl: o.Osl = None,
    engine: o.Engine = None,
    ttft_ms: o.TtftMs = None,
    tpot_ms: o.TpotMs = None,
    dtype: o.Dtype = "bf16",
    kv_dtype: o.KvDtype = "bf16",
    pin: o.Pin = None,
    json: o.Json = False,
) -> None:
    """Fewest GPUs that reach a rate within the limits, as equal replicas."""
    workload = Workload(
        phase=phase,  # type: ignore[arg-type]  # checked there
        context=context,
        isl=isl,
        osl=osl,
        engine=engine,
        ttft_ms=ttft_ms,
        tpot_ms=tpot_ms,
        dtype=dtype,
        kv_dtype=kv_dtype,
    )
    with progress() as tell:
        tell("importing torch")
        from autoshard.api.pins import parse_pin, pins_for
        from autoshard.api.serving import check_rate, smallest_cluster
        from autoshard.hardware import parse_cluster

        check_rate(rate)
        where = parse_cluster(device if device.endswith((".yaml", ".yml")) else f"{device}x8")
        pinned = parse_pin(pin)
        graph = traced(model, tell)
        data = smallest_cluster(graph, where, workload, rate, pinned=pins_for(graph, pinned), progress=tell)
    if json:
        show_json(data)
        return
    from autoshard.cli.views.serving import size_view

    show(*size_view(data))
