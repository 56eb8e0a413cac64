"""``autoshard compare``."""

from typing import Annotated

import typer

from autoshard.cli import options as o
from autoshard.cli.model import traced, with_collectives
from autoshard.cli.output_path import check_writable
from autoshard.cli.terminal import progress, show, show_json
from autoshard.workload import Workload, parse_effects


def compare(
    model: o.Model,
    methods: Annotated[
        str, typer.Option(help="Comma-separated: rl, rl-paper, megatron, anneal, mcmc, evolution, walk, random, exact.")
    ] = "rl,megatron,random",
    seeds: Annotated[int, typer.Option(help="Runs of each method that has a seed.")] = 10,
    cluster: o.Cluster = o.CLUSTER,
    phase: o.Phase = "decode",
    context: o.Context = 4096,
    isl: o.Isl = None,
    ttft_ms: o.TtftMs = None,
    tpot_ms: o.TpotMs = None,
    dtype: o.Dtype = "bf16",
    kv_dtype: o.KvDtype = "bf16",
    effects: o.Effects = None,
    budget: o.Budget = 4000,
    pin: o.Pin = None,
    fix: o.Fix = None,
    space: o.Space = None,
    collectives: o.Collectives = "fastest",
    state: o.State = None,
    json: o.Json = False,
) -> None:
    """Run all searches in the same space and compare them with the proven optimum."""
    workload = Workload(
        phase=phase,  # type: ignore[arg-type]  # checked there
        context=context,
        isl=isl,
        ttft_ms=ttft_ms,
        tpot_ms=tpot_ms,
        dtype=dtype,
        kv_dtype=kv_dtype,
        effects=parse_effects(effects),
    )
    names = [m.strip() for m in methods.split(",") if m.strip()]
    if state is not None:
        check_writable(state)
    with progress() as tell:
        tell("importing torch")
        from autoshard.api.compare import check_runs
        from autoshard.api.compare import compare as run_all
        from autoshard.api.pins import check_degrees, parse_fix, parse_pin, parse_space, pins_for
        from autoshard.api.solve import make_simulator
        from autoshard.hardware import parse_cluster

        check_runs(names, seeds=seeds, budget=budget)
        fixed, pinned, where = parse_fix(fix), parse_pin(pin), parse_cluster(with_collectives(cluster, collectives))
        wider = parse_space(space)
        graph = traced(model, tell)
        check_degrees(graph, fixed)
        tell(f"building the cost tables of {where.name}")
        simulator = make_simulator(
            graph, where, workload, fixed=fixed, pinned=pins_for(graph, pinned, wider), wider=wider
        )
        data = run_all(simulator, methods=names, seeds=seeds, budget=budget, state=state, progress=tell)
    if json:
        show_json(data)
        return
    from autoshard.cli.views.compare import view

    show(*view(data))
