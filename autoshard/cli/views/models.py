"""The catalogue as a table."""

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import RenderableType
from rich.table import Table

from autoshard.cli import numbers


def view(data: Mapping[str, Any]) -> Iterator[RenderableType]:
    """Names, sizes, sources."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("model", no_wrap=True)
    table.add_column("parameters", justify="right", no_wrap=True)
    table.add_column("from", overflow="fold")
    for model in data["models"]:
        table.add_row(model["name"], numbers.count(model["parameters"]), model["reference"])
    yield table
