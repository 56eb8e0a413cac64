"""An export as people read it."""

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from autoshard.cli.views.plan import degrees_text
from autoshard.cli.views.prediction import grid


def view(data: Mapping[str, Any]) -> Iterator[RenderableType]:
    """What was exported, how it is started, and the files: where they are, or what is in them."""
    table = grid()
    table.add_row("for", data["version"])
    table.add_row("degrees", degrees_text(data["degrees"]))
    if data["nearest"]:
        table.add_row("", f"the nearest plan it can express; predicted loss {100 * data['predicted_loss']:.1f} %")
    for note in data["notes"]:
        table.add_row("note", note)
    for path in data["written"]:
        table.add_row("wrote", path)
    table.add_row("run", Text(data["command"], style="bold green"))
    yield table
    if data["written"]:
        return
    for file in data["files"]:
        yield ""
        yield Text(f"--- {file['name']}", style="dim")
        yield Text(file["text"].rstrip(), no_wrap=True, overflow="ignore")
