"""An explanation, or two plans apart, as people read it."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from autoshard.cli import numbers
from autoshard.cli.views.plan import degrees_text
from autoshard.cli.views.prediction import NUM_TERMS, grid, rates, time_bars

SAME = 1e-9
"""Relative rates closer than this to one are called equal."""


def view(data: Mapping[str, Any]) -> Iterator[RenderableType]:
    """What for, what binds, where the time goes, what the alternatives cost."""
    table = grid()
    table.add_row("plan", f"{data['model']} on {data['cluster']}")
    table.add_row("degrees", Text(degrees_text(data["degrees"]), style="bold green"))
    for label, text in rates(data["predicted"]):
        table.add_row(label, text)
    now, saved = data["predicted"]["tokens_per_s_per_gpu"], data["saved_tokens_per_s_per_gpu"]
    if abs(now - saved) > SAME * now:
        table.add_row(
            "", Text(f"the file says {saved:,.1f} tokens/s/GPU: made by another version, or edited", "yellow")
        )
    for i, line in enumerate(data["binding"]):
        table.add_row("" if i else "binds", line)
    yield table
    yield ""
    yield from time_bars(data["kinds"], data["predicted"]["step_s"])
    yield ""
    yield Text("choices: the best rate with each, all others free (degrees and batch held)", style="bold")
    yield _choices(data["choices"])
    if data["collectives"]:
        yield ""
        yield Text("collectives: the algorithm priced, and the others", style="bold")
        yield _edges(data["collectives"])
    if data["next_best"]:
        yield ""
        yield from _next_best(data["next_best"])


def view_difference(data: Mapping[str, Any]) -> Iterator[RenderableType]:
    """Two plans apart."""
    table = grid()
    table.add_row("plans", " · ".join(f"{m} on {c}" for m, c in zip(data["models"], data["clusters"], strict=True)))
    first, second = data["tokens_per_s_per_gpu"]
    relative = "" if data["relative"] is None else f", the second is {100 * data['relative']:.2f} % of the first"
    table.add_row("throughput", f"{first:,.2f} and {second:,.2f} tokens/s/GPU{relative}")
    table.add_row("step", " and ".join(numbers.seconds(s) for s in data["step_s"]))
    for name in ("workload", "degrees", "choices"):
        for i, (key, (a, b)) in enumerate(data[name].items()):
            shown = (numbers.choice(a), numbers.choice(b)) if name == "choices" else (str(a), str(b))
            table.add_row("" if i else name, f"{key}: {shown[0]} -> {shown[1]}")
    if data["stages"]:
        table.add_row("stages", " -> ".join(",".join(map(str, s)) for s in data["stages"]))
    for i, (key, (a, b)) in enumerate(data["memory_bytes"].items()):
        table.add_row("" if i else "memory", f"{key}: {numbers.num_bytes(a)} -> {numbers.num_bytes(b)}")
    yield table
    if data["terms"]:
        yield ""
        yield Text("time of a step", style="bold")
        moved = _table("", "first", "second", "change")
        for t in data["terms"][:NUM_TERMS]:
            a, b = t["seconds"]
            moved.add_row(f"  {t['term']}", numbers.seconds(a), numbers.seconds(b), _signed(b - a))
        yield moved


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for i, name in enumerate(columns):
        table.add_column(name, justify="right" if i else "left", no_wrap=True)
    return table


def _signed(s: float) -> str:
    return f"{'-' if s < 0 else '+'}{numbers.seconds(abs(s))}"


def _choices(choices: Mapping[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    table.add_column("  op", no_wrap=True)
    table.add_column("taken", justify="center")
    for name in ("0", "1", "-"):
        table.add_column(name, justify="right", no_wrap=True)
    for key, op in choices.items():
        costs = {numbers.choice(o["choice"]): _cost(o) for o in op["options"]}
        table.add_row(f"  {key}", numbers.choice(op["taken"]), *(costs.get(n, "") for n in ("0", "1", "-")))
    return table


def _edges(edges: Sequence[Mapping[str, Any]]) -> Table:
    table = _table("  of", "collective", "bytes", "calls", "algorithm", "a call", "others")
    for e in edges:
        others = (f"{name} {numbers.seconds(s)}" for name, s in e["seconds"].items() if name != e["algorithm"])
        table.add_row(
            f"  {e['where']}",
            f"{e['kind']} {e['axis']}({e['group_size']})",
            numbers.num_bytes(e["num_bytes"]),
            str(e["count"]),
            e["algorithm"],
            numbers.seconds(e["seconds"][e["algorithm"]]),
            ", ".join(others),
        )
    return table


def _cost(option: Mapping[str, Any]) -> str:
    relative = option["relative"]
    if relative is None:
        return "no"
    return "best" if relative > 1 - SAME else f"-{numbers.share(1 - relative)}"


def _next_best(other: Mapping[str, Any]) -> Iterator[RenderableType]:
    yield Text("next best degrees", style="bold")
    yield f"  {degrees_text(other['degrees'])}: {100 * other['relative']:.2f} % of the plan's rate"
    table = _table("  time per sequence in flight", "plan", "next best", "change")
    for kind, (a, b) in other["kinds_s_per_sequence"].items():
        table.add_row(f"  {kind}", numbers.seconds(a), numbers.seconds(b), _signed(b - a))
    yield table
