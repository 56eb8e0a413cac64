"""The frontier and the smallest cluster as people read them."""

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from autoshard.cli import numbers
from autoshard.cli.views.plan import degrees_text
from autoshard.cli.views.prediction import grid

_DEGREES = ("pp", "dp", "tp", "ep", "etp", "batch", "replicas")


def frontier_view(data: Mapping[str, Any]) -> Iterator[RenderableType]:
    """One line a point, most tokens/s/GPU first."""
    yield Text(f"{data['model']} on {data['cluster']}, predicted", style="bold")
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for name in ("tokens/s/GPU", "tokens/s/user", "TPOT", "TTFT", *_DEGREES):
        table.add_column(name, justify="right", no_wrap=True)
    for point in data["frontier"]:
        ttft = "" if point["ttft_s"] is None else numbers.seconds(point["ttft_s"])
        table.add_row(
            f"{point['tokens_per_s_per_gpu']:,.1f}",
            f"{point['tokens_per_s_per_user']:,.1f}",
            numbers.seconds(point["tpot_s"]),
            ttft,
            *(str(point["degrees"][name]) for name in _DEGREES),
        )
    yield table


def size_view(data: Mapping[str, Any]) -> Iterator[RenderableType]:
    """The answer, its latencies, and the replica sizes that were tried."""
    table = grid()
    table.add_row("model", data["model"])
    table.add_row("needs", Text(f"{data['gpus']} {data['device']}", style="bold green"))
    table.add_row("degrees", degrees_text(data["degrees"]))
    table.add_row("rate", f"{data['tokens_per_s']:,.0f} tokens/s predicted, {data['rate']:,.0f} asked for")
    for label, key in (("TPOT", "tpot_s"), ("TTFT", "ttft_s")):
        if data[key] is not None:
            table.add_row(label, numbers.seconds(data[key]))
    for i, each in enumerate(data["tried"]):
        text = f"replicas of {each['gpus_per_replica']}: {each['tokens_per_s']:,.0f} tokens/s each, {each['gpus']} GPUs"
        table.add_row("" if i else "tried", text)
    yield table
