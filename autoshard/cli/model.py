"""What the command line adds to naming a model and a cluster."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from autoshard.errors import InvalidInputError

if TYPE_CHECKING:
    from autoshard.ir import OpGraph


def use_working_directory(model: str) -> None:
    """Let ``package.module:factory`` be found in the current folder, as ``python -m`` would."""
    here = str(Path.cwd())
    if ":" in model and here not in sys.path:
        sys.path.insert(0, here)


def traced(model: str, tell: Callable[[str], None]) -> "OpGraph":
    """The graph of the model that a command was given; imports torch."""
    from autoshard.api.models import graph_of, source_of

    use_working_directory(model)
    source = source_of(model)
    tell(f"tracing {source.name}")
    return graph_of(model, source)


def with_collectives(cluster: str, collectives: str) -> str:
    """The cluster with the collectives asked for. Raises InvalidInputError for others than fastest and library."""
    if collectives not in ("fastest", "library"):
        raise InvalidInputError(f"unknown collectives {collectives!r}: known are fastest and library")
    return cluster if collectives == "fastest" else f"{cluster}+library"


def is_plan_file(subject: str) -> bool:
    """Whether the text names a plan file rather than a model: a JSON object that states a plan's schema.

    Raises:
        InvalidInputError: for a path that ends in ``.json`` and is not there.
    """
    path = Path(subject)
    if not path.is_file():
        if subject.endswith(".json"):
            raise InvalidInputError(f"cannot read {subject}: no such file")
        return False
    try:
        data = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        return False
    return isinstance(data, dict) and "schema" in data
