"""How ``calibrate eval`` looks on a terminal."""

from collections.abc import Mapping
from typing import Any

from rich.console import RenderableType
from rich.table import Table


def errors_view(data: Mapping[str, Any]) -> tuple[RenderableType, ...]:
    """Errors in per cent, the whole table first, then its groups."""
    table = Table(title=f"{data['kind']} on {data['device']}: |predicted / measured - 1|", title_justify="left")
    table.add_column("group")
    for heading in ("rows", "median %", "90th percentile %"):
        table.add_column(heading, justify="right")
    for group, row in (("all", data), *data["by"].items()):
        table.add_row(group, f"{row['rows']:,}", f"{row['median_ape']:.1f}", f"{row['p90_ape']:.1f}")
    return (table,)
