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
        for device, row in part["tpot"]["by_device"].items():
            errors.add_row(f"{name}, {device} alone", *_error_cells(row, part["ttft"]["by_device"][device]))
        for label, row in part["tpot"]["by"].items():
            errors.add_row(label, *_error_cells(row, part["ttft"]["by"][label]))
        terms.add_column(f"{name}: share %", justify="right")
        terms.add_column("error without %", justify="right")
        picks += _picks(name, part["under_a_limit"])
    if len(sections) > 1:
        picks += _picks("all", data["under_a_limit"])
    for term in data[sections[0]]["terms"]:
        cells = [data[name]["terms"][term] for name in sections]
        values = [f"{100 * c['median_share']:.1f}" for c in cells], [f"{c['median_ape_without']:.1f}" for c in cells]
        terms.add_row(term, *(cell for pair in zip(*values, strict=True) for cell in pair))
    origin = Table(title="where the error of TPOT comes from: if one term were off by one factor", title_justify="left")
    for heading in ("model, engine, device", "error %", "term", "factor", "then %", "next", "then %"):
        origin.add_column(heading, justify="right" if "%" in heading or heading == "factor" else "left")
    for name in sections:
        for label, part in data[name]["error_from"].items():
            best = sorted(part["terms"].items(), key=lambda item: item[1]["median_ape"])
            (first, a), (second, b) = best[0], best[1]
            cells = [f"{part['median_ape']:.1f}", first, f"{a['factor']:.2f}", f"{a['median_ape']:.1f}"]
            origin.add_row(label, *cells, f"{second} x {b['factor']:.2f}", f"{b['median_ape']:.1f}")
    lines = [f"skipped {name}: {why}" for name, why in data["skipped"].items()]
    return (errors, terms, origin, *picks, *lines)


def _picks(name: str, chosen: Mapping[str, Any]) -> list[str]:
    """How good the picks under a limit are; in brackets with every repeat of a candidate by itself."""
    if not chosen["picks"]:
        return []

    def shares(of: Mapping[str, Any]) -> tuple[str, str]:
        missed, regret = (of[key] for key in ("missed_share", "regret"))
        return f"{100 * missed:.1f} %", "-" if regret is None else f"{100 * regret:.1f} %"

    missed, regret = shares(chosen)
    if "apart" in chosen and chosen["apart"]["picks"]:
        apart = shares(chosen["apart"])
        missed, regret = f"{missed} ({apart[0]})", f"{regret} ({apart[1]})"
    limits = ", ".join(map(str, chosen["limits_ms"]))
    return [
        f"{name}: {chosen['picks']} picks under TPOT limits of {limits} ms: {missed} miss theirs by more than a tenth,"
        f" regret of the others {regret}"
    ]


def _error_cells(tpot: Mapping[str, Any], ttft: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        f"{tpot['rows']:,}",
        *(f"{row[key]:.1f}" for row in (tpot, ttft) for key in ("median_ape", "p90_ape")),
    )
