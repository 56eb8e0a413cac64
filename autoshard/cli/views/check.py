"""A verdict as people read it."""

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from autoshard.cli import numbers
from autoshard.cli.views.prediction import grid

_DEGREES = ("pp", "dp", "tp", "ep", "etp", "replicas")


def view(data: Mapping[str, Any]) -> Iterator[RenderableType]:
    """What was asked, the verdict with its reasons, memory, and the nearest plans or what would help."""
    yield _head(data)
    yield ""
    for finding in data["reasons"]:
        yield Text.assemble(("  no   ", "bold red"), f"{finding['rule']}: {finding['message']}")
    for finding in data["notes"]:
        yield Text.assemble(("  note ", "yellow"), f"{finding['rule']}: {finding['message']}")
    if data["reasons"] or data["notes"]:
        yield ""
    if data["nearest"]:
        yield Text("nearest legal plans that fit", style="bold")
        yield _plans(data["nearest"])
    for change in data["relaxations"]:
        degrees = ", ".join(f"{k}={v}" for k, v in change["degrees"].items())
        yield Text.assemble(("  help ", "bold green"), f"{change['message']} ({degrees})")
    if not data["nearest"] and not data["relaxations"] and data["reasons"]:
        yield "  nothing that was tried would help: more devices, a shorter context, fewer bits"


def _head(data: Mapping[str, Any]) -> RenderableType:
    table = grid()
    table.add_row("model", f"{data['model']}, weights in {data['quant']}, KV in {data['kv_dtype']}")
    fixed = ", ".join(f"{k}={v}" for k, v in data["fixed"].items()) or "nothing fixed"
    table.add_row("asked", f"{fixed} on {data['cluster']}, one request of {data['context']:,} tokens")
    table.add_row("engine", f"{data['engine']['title']} {data['engine']['version']}")
    for name in ("legal", "fits"):
        good = data[name]
        table.add_row(name, Text("yes" if good else "no", style="bold green" if good else "bold red"))
    table.add_row("degrees", ", ".join(f"{k}={data['degrees'][k]}" for k in _DEGREES))
    m = data["memory_bytes"]
    other = m["context"] + m["communication"] + m["graphs"]
    table.add_row(
        "memory",
        f"{numbers.num_bytes(m['total'])} of {numbers.num_bytes(m['capacity'])} a GPU: weights"
        f" {numbers.num_bytes(m['weights'])}, activations {numbers.num_bytes(m['activations'])}, context, buffers and"
        f" graphs {numbers.num_bytes(other)}, a request {numbers.num_bytes(m['request'])}",
    )
    if data["max_concurrency"] is not None:
        table.add_row("concurrency", f"at most {data['max_concurrency']:,.1f} requests of this length a replica")
    return table


def _plans(plans: list[Mapping[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for name in _DEGREES:
        table.add_column(name if name != "pp" else "  pp", justify="right", no_wrap=True)
    table.add_column("GPUs", justify="right")
    table.add_column("memory", justify="right", no_wrap=True)
    table.add_column("requests", justify="right", no_wrap=True)
    for p in plans:
        most = "-" if p["max_concurrency"] is None else f"{p['max_concurrency']:,.1f}"
        cells = [str(p["degrees"][n]) for n in _DEGREES]
        table.add_row(*cells, str(p["gpus"]), f"{p['memory_gib']:.1f} GiB", most)
    return table
