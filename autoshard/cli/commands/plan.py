"""``autoshard plan``."""

import time
from pathlib import Path
from typing import Annotated

import typer

from autoshard.cli import options as o
from autoshard.cli.model import use_working_directory, with_collectives
from autoshard.cli.output_path import check_writable
from autoshard.cli.terminal import progress, show, show_json, warn
from autoshard.workload import Workload, parse_effects


def plan(
    model: o.Model,
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
    search: Annotated[
        str, typer.Option(help="rl, exact, rl-paper, megatron, anneal, mcmc, evolution, walk or random.")
    ] = "rl",
    budget: o.Budget = 4000,
    seed: Annotated[int, typer.Option(help="Of the search.")] = 0,
    pin: o.Pin = None,
    fix: o.Fix = None,
    stages: o.Stages = None,
    polish: Annotated[bool, typer.Option("--polish/--no-polish", help="Take the proven optimum if better.")] = True,
    allow_uneven: o.AllowUneven = False,
    space: o.Space = None,
    collectives: o.Collectives = "fastest",
    warm_start: Annotated[Path | None, typer.Option(help="A saved policy that rl starts from.")] = None,
    save_policy: Annotated[Path | None, typer.Option(help="Write the policy that rl trained longest here.")] = None,
    state: o.State = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Write the plan file here.")] = None,
    json: o.Json = False,
) -> None:
    """Find a sharding plan for a model on a cluster."""
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
    if output is not None:
        check_writable(output)
    if save_policy is not None:
        check_writable(save_policy)
    if state is not None:
        check_writable(state)
    with progress() as tell:
        tell("importing torch")
        from autoshard.api.describe import describe_plan
        from autoshard.api.entry import autoshard

        use_working_directory(model)
        found = autoshard(
            model,
            with_collectives(cluster, collectives),
            workload,
            search=search,
            budget=budget,
            seed=seed,
            stages=stages,
            fix=fix,
            pin=pin,
            polish=polish,
            allow_uneven=allow_uneven,
            warm_start=warm_start,
            save_policy=save_policy,
            state=state,
            space=space,
            progress=tell,
        )
    data = describe_plan(found.data)
    data["search"]["seconds"] = time.perf_counter() - start
    data["plan_file"] = None if output is None else str(output)
    if output is not None:
        found.save(output)
    for text in data["warnings"]:
        warn(text)
    if json:
        show_json(data)
        return
    from autoshard.cli.views.plan import view

    show(*view(data))
