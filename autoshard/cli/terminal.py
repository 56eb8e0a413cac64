"""Where output goes: the answer to stdout, progress to a stderr that is a terminal."""

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console, RenderableType

WIDTH = 100
"""Columns where stdout is no terminal."""


def show(*parts: RenderableType) -> None:
    """Print for people; plain text where stdout is no terminal."""
    console = Console(width=None if sys.stdout.isatty() else WIDTH, highlight=False)
    for part in parts:
        console.print(part)


def show_json(data: Mapping[str, Any]) -> None:
    """Print one JSON object, numbers in full; anything not finite is our bug."""
    sys.stdout.write(json.dumps(data, indent=1, allow_nan=False) + "\n")


def warn(message: str) -> None:
    """One line on stderr."""
    sys.stderr.write(f"autoshard: warning: {' '.join(message.split())}\n")


@contextmanager
def progress(*, hidden: bool = False) -> Iterator[Callable[[str], None]]:
    """A function that shows what is being done, on stderr if that is a terminal; otherwise it is silent."""
    if hidden or not sys.stderr.isatty():
        yield lambda _: None
        return
    with Console(stderr=True).status("starting") as status:
        yield lambda text: status.update(f"{text} ...")
