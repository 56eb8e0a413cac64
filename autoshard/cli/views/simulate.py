"""One simulated strategy as people read it."""

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from autoshard.cli import numbers
from autoshard.cli.views.plan import degrees_text
from autoshard.cli.views.prediction import grid, memory, rates, time_bars


def view(data: Mapping[str, Any]) -> Iterator[RenderableType]:
    """The verdict, the prediction, every large term."""
    table = grid()
    table.add_row("strategy", f"{data['model']} on {data['cluster']}")
    table.add_row("degrees", Text(degrees_text(data["degrees"]), style="bold green"))
    chosen = " ".join(f"{key.partition('/')[2]}={numbers.choice(c)}" for key, c in data["choices"].items())
    table.add_row("choices", chosen)
    verdict = "yes" if data["feasible"] else "no"
    table.add_row("feasible", Text(verdict, style="green" if data["feasible"] else "red"))
    for reason in data["reasons"]:
        table.add_row("", reason)
    for label, text in rates(data["predicted"]):
        table.add_row(label, text)
    for label, parts in memory(data["predicted"], data["capacity_bytes"]):
        table.add_row(label, parts)
    yield table
    yield ""
    serving = data["workload"]["phase"] == "serve"
    yield from time_bars(data["terms"], data["predicted"]["step_s"], serving=serving)
