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


def serving_view(data: Mapping[str, Any]) -> tuple[RenderableType, ...]:
    """Errors of TPOT and TTFT by model and device, what the terms are worth, and picks under a limit."""
    errors = Table(title="serving, leave one model out: |predicted / measured - 1|", title_justify="left")
    errors.add_column("model and device")
    for heading in ("rows", "TPOT median %", "90th %", "TTFT median %", "90th %"):
        errors.add_column(heading, justify="right")
    terms = Table(title="terms of TPOT", title_justify="left")
    terms.add_column("term")
    picks = []
    sections = [name for name in ("moe", "dense") if name in data]
    for name in sections:
        part = data[name]
        errors.add_row(f"all {name}", *_error_cells(part["tpot"], part["ttft"]), style="bold")
        for label, row in part["tpot"]["by"].items():
            errors.add_row(label, *_error_cells(row, part["ttft"]["by"][label]))
        terms.add_column(f"{name}: share %", justify="right")
        terms.add_column("error without %", justify="right")
        chosen = part["under_a_limit"]
        if chosen["picks"]:
            regret = "-" if chosen["regret"] is None else f"{100 * chosen['regret']:.1f} %"
            picks.append(
                f"{name}: {chosen['picks']} picks under TPOT limits of {', '.join(map(str, chosen['limits_ms']))} ms:"
                f" {100 * chosen['missed_share']:.1f} % miss theirs by more than a tenth, regret of the others {regret}"
            )
    for term in data[sections[0]]["terms"]:
        cells = [data[name]["terms"][term] for name in sections]
        values = [f"{100 * c['median_share']:.1f}" for c in cells], [f"{c['median_ape_without']:.1f}" for c in cells]
        terms.add_row(term, *(cell for pair in zip(*values, strict=True) for cell in pair))
    lines = [f"skipped {name}: {why}" for name, why in data["skipped"].items()]
    return (errors, terms, *picks, *lines)


def _error_cells(tpot: Mapping[str, Any], ttft: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        f"{tpot['rows']:,}",
        *(f"{row[key]:.1f}" for row in (tpot, ttft) for key in ("median_ape", "p90_ape")),
    )
