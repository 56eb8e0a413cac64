"""A plan as people read it."""

from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from autoshard.cli import numbers
from autoshard.cli.views.blocks import LEGEND, block_tables, excluded
from autoshard.cli.views.prediction import grid, memory, rates, time_bars
from autoshard.simulator.simulator import DEFAULT_ENGINE

_RESIDUAL = {None: "replicated", 0: "hidden dim sharded", 1: "tokens split (sequence parallel)"}


def view(data: Mapping[str, Any]) -> Iterator[RenderableType]:
    """The whole plan: what for, degrees, ops, prediction, search, alternatives."""
    yield _header(data)
    yield ""
    yield from block_tables(data["blocks"], data["space"]["legal_choices"])
    yield LEGEND
    yield ""
    yield _prediction(data)
    yield ""
    terms: dict[str, float] = {}
    for t in data["predicted"]["terms"]:
        label = f"{t['part']}/{t['label']} {t['what']}"
        terms[label] = terms.get(label, 0.0) + t["seconds"]
    yield from time_bars(terms, data["predicted"]["step_s"], serving=data["workload"]["phase"] == "serve")
    yield ""
    yield _search(data)
    if data["alternatives"]:
        yield ""
        yield from _alternatives(data)
    if data.get("plan_file"):
        yield ""
        yield f"written to {data['plan_file']}"


def degrees_text(degrees: Mapping[str, int]) -> str:
    """``pp 1 · dp 1 · tp 8 · ep 4 · etp 2 · batch 112 · replicas 8``."""
    return " · ".join(f"{name} {degrees[name]}" for name in ("pp", "dp", "tp", "ep", "etp", "batch", "replicas"))


def workload_text(workload: Mapping[str, Any]) -> str:
    """The workload in one line."""
    parts = [workload["phase"]]
    prompt = workload["phase"] != "decode" and workload["isl"] is not None
    parts.append(f"prompts of {workload['isl']:,}" if prompt else f"context {workload['context']:,}")
    if workload["phase"] == "serve":
        parts.append(f"answers of {workload['osl']:,}")
        if workload["concurrency"] is not None:
            parts.append(f"{workload['concurrency']:,} requests in flight")
        parts.append(f"as {workload['engine'] or DEFAULT_ENGINE} runs it")
    parts += [f"{n.upper()} <= {workload[f'{n}_ms']:g} ms" for n in ("ttft", "tpot") if workload[f"{n}_ms"] is not None]
    parts.append(f"{workload['dtype']} weights, {workload['kv_dtype']} KV")
    if workload["effects"]:
        parts.append(f"with {', '.join(workload['effects'])}")
    return ", ".join(parts)


def _header(data: Mapping[str, Any]) -> RenderableType:
    model, cluster, degrees = data["model"], data["cluster"], data["degrees"]
    table = grid()
    sizes = f"{numbers.count(model['parameters'])} parameters, {numbers.count(model['active_parameters'])} active"
    table.add_row("model", f"{model['name']}  ({model['class']}, {sizes})")
    per_node = min(cluster["devices_per_node"], cluster["num_devices"])
    table.add_row(
        "cluster",
        f"{cluster['name']}  ({cluster['num_devices']} {cluster['device']}, {per_node} a node,"
        f" {numbers.num_bytes(cluster['memory_bytes'])} usable each)",
    )
    table.add_row("workload", workload_text(data["workload"]))
    each = degrees["pp"] * degrees["dp"] * degrees["tp"]
    used = each * degrees["replicas"]
    idle = "" if used == cluster["num_devices"] else f", {cluster['num_devices'] - used} idle"
    table.add_row("degrees", Text(degrees_text(degrees), style="bold green"))
    table.add_row("", f"{each} GPUs a replica, {used} of {cluster['num_devices']} used{idle}")
    if degrees["pp"] > 1:
        runs = ((layers, len(list(same))) for layers, same in groupby(data["stages"]))
        table.add_row("stages", ", ".join(f"{count} of {layers} layers" for layers, count in runs))
        sent = numbers.num_bytes(data["handovers"][0]["num_bytes"])
        table.add_row("", f"a rank hands {sent} of every microbatch to the next stage")
    table.add_row("residual", f"{_RESIDUAL[data['choices'].get('model/residual')]} over tp")
    if degrees["ep"] > 1:
        exchanged = data["choices"].get("model/dispatch") == 0
        table.add_row("dispatch", "tokens go to their experts by all_to_all" if exchanged else "tokens are gathered")
    for key, dims in data["padding"].items():
        parts = ", ".join(f"{p['dim']} {p['from']:,} to {p['to']:,} over {p['axis']}" for p in dims)
        table.add_row("padded", f"{key}: {parts}, with zeros")
    return table


def _prediction(data: Mapping[str, Any]) -> RenderableType:
    table = grid()
    table.add_row("predicted", Text("by the simulator; nothing here is measured", style="dim"))
    for label, text in rates(data["predicted"]):
        table.add_row(label, text)
    for label, parts in memory(data["predicted"], data["cluster"]["memory_bytes"]):
        table.add_row(label, parts)
    for i, line in enumerate(data["binding"]):
        table.add_row("" if i else "binds", line)
    return table


def _search(data: Mapping[str, Any]) -> RenderableType:
    search, space = data["search"], data["space"]
    table = grid()
    if search["algorithm"] != "exact":
        found = search["found_tokens_per_s_per_gpu"]
        regret = ""
        if search["exact_tokens_per_s_per_gpu"]:
            below = max(0.0, 1 - found / search["exact_tokens_per_s_per_gpu"])
            name = "bound" if search["exact_is_bound"] else "optimum"
            regret = f", the {name}" if below < 1e-12 else f", {numbers.share(below)} below the {name}"
        calls = f"{search['calls']:,} simulator calls, seed {search['seed']}"
        table.add_row(f"{search['algorithm']} found", f"{found:,.2f} tokens/s/GPU in {calls}{regret}")
    if search["exact_tokens_per_s_per_gpu"] is not None:
        rate = f"{search['exact_tokens_per_s_per_gpu']:,.2f} tokens/s/GPU"
        if search["exact_is_bound"]:
            why = "effects" if data["workload"]["effects"] else "mixed serving"
            table.add_row("bound", f"{rate} ({why}: no strategy exceeds it, none is known to reach it)")
        else:
            table.add_row("optimum", f"{rate} (proven over the whole space)")
    by_exact = "the best that exact found" if search["exact_is_bound"] else "the proven optimum"
    taken = by_exact if search["taken_from"] == "exact" else f"what {search['algorithm']} found"
    table.add_row("plan", f"{taken}, regret {numbers.share(search['regret_to_exact'] or 0.0)}")
    if search["balanced_gain"] is not None:
        gain = numbers.share(search["balanced_gain"])
        table.add_row("stages", f"balanced by time and bytes after the search: {gain} above even ones")
        table.add_row("", "(the search, its optimum and the regret are of even stages)")
    table.add_row("space", f"{space['degree_points']:,} degree points that fit, {space['strategies']} strategies")
    for line in excluded(space["legal_choices"]):
        table.add_row("", Text(line, style="dim"))
    if "seconds" in search:
        table.add_row("took", f"{search['seconds']:.1f} s")
    return table


def _alternatives(data: Mapping[str, Any]) -> Iterator[RenderableType]:
    yield Text("next best degrees", style="bold")
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    names = ("pp", "dp", "tp", "ep", "etp", "batch", "replicas")
    for name in names:
        table.add_column(name if name != "pp" else "  pp", justify="right", no_wrap=True)
    table.add_column("tokens/s/GPU", justify="right", no_wrap=True)
    table.add_column("of the plan", justify="right", no_wrap=True)
    for a in data["alternatives"]:
        cells = [str(a["degrees"][n]) for n in names]
        table.add_row(*cells, f"{a['tokens_per_s_per_gpu']:,.2f}", f"{100 * a['relative']:.2f} %")
    yield table
