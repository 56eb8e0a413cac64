"""``autoshard frontier``."""

from autoshard.cli import options as o
from autoshard.cli.model import traced
from autoshard.cli.terminal import progress, show, show_json
from autoshard.workload import Workload


def frontier(
    model: o.Model,
    cluster: o.Cluster = o.CLUSTER,
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
    fix: o.Fix = None,
    json: o.Json = False,
) -> None:
    """Tokens/s/GPU against tokens/s/user: the degrees and batches that no other beats in both."""
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
        from autoshard.api.pins import check_degrees, parse_fix, parse_pin, pins_for
        from autoshard.api.serving import frontier as find
        from autoshard.hardware import parse_cluster

        fixed, pinned, where = parse_fix(fix), parse_pin(pin), parse_cluster(cluster)
        graph = traced(model, tell)
        check_degrees(graph, fixed)
        tell(f"pricing {where.name}")
        data = find(graph, where, workload, fixed=fixed, pinned=pins_for(graph, pinned))
    if json:
        show_json(data)
        return
    from autoshard.cli.views.serving import frontier_view

    show(*frontier_view(data))
