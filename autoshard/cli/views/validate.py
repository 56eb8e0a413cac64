"""What was proved, tier by tier and case by case."""

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from autoshard.cli.views.prediction import grid


def view(data: Mapping[str, Any]) -> Iterator[RenderableType]:
    """A row per tier, a row per case, then the verdict."""
    for tier in data.get("tiers", ()):
        if tier["name"] == "full_size":
            yield _full_size(data["model"], tier)
            yield ""
    kinds = " and ".join(f"{t['nproc']} {t['name'].replace('_', ' ')}" for t in data.get("tiers", ()) if "nproc" in t)
    yield f"{data['model']}, reduced, on {kinds} ({data['device']}): sharded against unsharded"
    yield ""
    both = {bool(case.get("simulated")) for case in data["cases"]} == {True, False}
    by_name: dict[str, list[Mapping[str, Any]]] = {}
    for case in data["cases"]:
        name = f"{case['name']} (simulated)" if both and case.get("simulated") else case["name"]
        by_name.setdefault(name, []).append(case)
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    table.add_column("case", no_wrap=True)
    table.add_column("pp dp tp ep etp", no_wrap=True)
    for dtype in data["by_dtype"]:
        table.add_column(dtype, justify="right", no_wrap=True)
    table.add_column("collectives", justify="right", no_wrap=True)
    table.add_column("bytes", no_wrap=True)
    for name, runs in by_name.items():
        calls = max(sum(t["count"] for t in run["observed"]) for run in runs)
        table.add_row(
            name,
            "  ".join(f"{runs[0]['degrees'][n]}" for n in ("pp", "dp", "tp", "ep", "etp")),
            *(_error(run) for run in runs),
            _mark(all(run["collectives_match"] for run in runs), f"{calls} =="),
            _mark(all(run["parameter_bytes_match"] for run in runs), "=="),
        )
    yield table
    yield ""
    for name, note in _notes(data):
        yield Text(f"{name}: {note}", style="dim")
    for case in data["cases"]:
        if not case["passed"]:
            yield Text(f"{case['name']} {case['dtype']}: {case['difference']}", style="red")
    for tier in data.get("tiers", ()):
        if tier["name"] == "op_times":
            yield from _op_times(tier)
            yield ""
    yield Text("max|a-b| / max|b| of the logits; == as listed before the ranks started", style="dim")
    yield ""
    yield _verdict(data)


def _full_size(model: str, tier: Mapping[str, Any]) -> Text:
    """One line on the tier without numbers."""
    start = f"{model}, full size, {tier['world_size']} pretended ranks, no numbers: "
    if tier["passed"] is None:
        return Text(f"{start}not run, {tier['reason']}", style="yellow")
    if not tier["passed"]:
        return Text(f"{start}{tier['difference']}", style="red")
    calls = sum(t["count"] for t in tier["observed"])
    held = tier["parameter_bytes"] / 1e9
    return Text(f"{start}{calls} collectives and {held:.2f} GB of parameters a rank, as planned", style="green")


def _op_times(tier: Mapping[str, Any]) -> Iterator[RenderableType]:
    """A row per fused op: measured on this machine, predicted for the plan's device."""
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for name in ("op", "one rank's share"):
        table.add_column(name, no_wrap=True)
    table.add_column(f"measured on {tier['device']}", justify="right", no_wrap=True)
    table.add_column(f"predicted for {tier['predicted_for']}", justify="right", no_wrap=True)
    for t in tier["ops"]:
        measured = t["reason"] if t["measured_s"] is None else f"{t['measured_s'] * 1e6:.1f} us"
        predicted = "" if t["predicted_s"] is None else f"{t['predicted_s'] * 1e6:.1f} us"
        table.add_row(f"{t['block']}/{t['op']}", t["shapes"], measured, predicted)
    yield table
    yield Text(f"{sum(c['count'] for c in tier['collectives'])} collectives a pass: not measured", style="dim")


def _error(case: Mapping[str, Any]) -> Text:
    error = case["logits_max_rel_err"]
    good = error is not None and error <= case["tolerance"]
    return Text("none" if error is None else f"{error:.1e}", style="green" if good else "red")


def _notes(data: Mapping[str, Any]) -> list[tuple[str, str]]:
    return list(dict.fromkeys((case["name"], note) for case in data["cases"] for note in case["notes"]))


def _mark(good: bool, text: str) -> Text:
    return Text(text, style="green") if good else Text("differ", style="red")


def _verdict(data: Mapping[str, Any]) -> RenderableType:
    table = grid()
    passed = sum(case["passed"] for case in data["cases"])
    style = "bold green" if data["passed"] else "bold red"
    table.add_row("passed", Text(f"{passed} of {len(data['cases'])} cases", style=style))
    for dtype, found in data["by_dtype"].items():
        worst = "none" if found["logits_max_rel_err"] is None else f"{found['logits_max_rel_err']:.1e}"
        table.add_row(dtype, f"logits differ by at most {worst} (admitted: {found['tolerance']:.0e})")
    if "seconds" in data:
        table.add_row("took", f"{data['seconds']:.1f} s")
    return table
