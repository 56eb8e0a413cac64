"""A measured search as people read it."""

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from autoshard.cli import numbers
from autoshard.cli.views.prediction import grid


def view(data: Mapping[str, Any]) -> Iterator[RenderableType]:
    """Where it was measured, the finalists, and what failed."""
    on = data["measured_on"]
    head = grid()
    what = "the model as it is" if on["full_size"] else "a reduced model of the same architecture, random weights"
    head.add_row("measured", Text("by the clock on real ranks; nothing here is predicted", style="dim"))
    head.add_row("model", f"{data['model']}: {what}, {on['dtype']}")
    head.add_row("ranks", f"{on['nproc']} over {on['backend']} ({on['device']}) of this machine, one thread each")
    head.add_row("workload", f"{on['phase']}, {on['sequences']} sequences, prompts of {on['context']}")
    failed = [run for run in data["runs"] if run["failure"]]
    kept = f", {data['resumed']} of them from the state file" if data["resumed"] else ""
    head.add_row(
        "search", f"{len(data['runs'])} strategies measured in {data['launches']} launches{kept}, seed {data['seed']}"
    )
    if failed:
        head.add_row("failed", f"{len(failed)}: {failed[0]['failure']}")
    if on["device"] == "cpu":
        head.add_row("note", "processes of one CPU say nothing of GPUs: a rehearsal of the same command on them")
    yield head
    yield ""
    yield Text("the best, measured once more side by side", style="bold")
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    names = ("pp", "dp", "tp", "ep", "etp")
    for name in (*names, "tokens/s", "step", "least", "most", ""):
        table.add_column(name, justify="right", no_wrap=True)
    for one in data["confirmed"]:
        table.add_row(
            *(str(one["degrees"][n]) for n in names),
            f"{one['tokens_per_s']:,.1f}",
            *(numbers.seconds(one[n]) for n in ("step_s", "least_s", "most_s")),
            "Megatron's choices" if one["megatron"] else "",
        )
    yield table
    if data["best"] is not None:
        yield ""
        listed = ", ".join(f"{k}={'none' if c is None else c}" for k, c in data["best"]["choices"].items())
        yield Text(f"choices of the best: {listed}", style="dim")
