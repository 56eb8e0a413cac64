"""``autoshard simulate``."""

import time

from autoshard.cli import options as o
from autoshard.cli.model import traced, with_collectives
from autoshard.cli.terminal import progress, show, show_json
from autoshard.workload import Workload, parse_effects


def simulate(
    model: o.Model,
    fix: o.Fix = None,
    pin: o.Pin = None,
    cluster: o.Cluster = o.CLUSTER,
    phase: o.Phase = "decode",
    context: o.Context = 4096,
    isl: o.Isl = None,
    osl: o.Osl = None,
    concurrency: o.Concurrency = None,
    engine: o.Engine = None,
    ttft_ms: o.TtftMs = None,
    tpot_ms: o.TpotMs = None,
    dtype: o.Dtype = "bf16",
    kv_dtype: o.KvDtype = "bf16",
    effects: o.Effects = None,
    allow_uneven: o.AllowUneven = False,
    space: o.Space = None,
    collectives: o.Collectives = "fastest",
    json: o.Json = False,
) -> None:
    """Predict one strategy: every term of its time and memory.

    Degrees that --fix leaves open follow from dp*tp = ep*etp or are 1; choices that --pin leaves open are Megatron's.
    """
    start = time.perf_counter()
    workload = Workload(
        phase=phase,  # type: ignore[arg-type]  # checked there
        context=context,
        isl=isl,
        osl=osl,
        concurrency=concurrency,
        engine=engine,
        ttft_ms=ttft_ms,
        tpot_ms=tpot_ms,
        dtype=dtype,
        kv_dtype=kv_dtype,
        effects=parse_effects(effects),
    )
    with progress() as tell:
        tell("importing torch")
        from autoshard.api.pins import parse_fix, parse_pin, parse_space, pins_for
        from autoshard.api.simulate import simulate as predict
        from autoshard.hardware import parse_cluster

        fixed, pinned, where = parse_fix(fix), parse_pin(pin), parse_cluster(with_collectives(cluster, collectives))
        wider = parse_space(space)
        graph = traced(model, tell)
        pins = pins_for(graph, pinned, wider)
        data = predict(graph, where, workload, fixed=fixed, pinned=pins, uneven=allow_uneven, wider=wider)
    data["seconds"] = time.perf_counter() - start
    if json:
        show_json(data)
        return
    from autoshard.cli.views.simulate import view

    show(*view(data))
