"""Models by name: the only place, with the API, that looks into ``autoshard_models``. Quick to import; no torch."""

import difflib
from typing import TYPE_CHECKING

from autoshard_models import CATALOGUE, CatalogueEntry

from autoshard.errors import InvalidInputError

if TYPE_CHECKING:
    from autoshard.tracing import ModelSource

__all__ = ["entries", "find", "nearest"]


def entries() -> tuple[CatalogueEntry, ...]:
    """Every model that is known by name, in the catalogue's order."""
    return tuple(CATALOGUE.values())


def nearest(name: str) -> str | None:
    """The known name most like ``name``, if any is."""
    by_lower = {known.lower(): known for known in CATALOGUE}
    close = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.5)
    return by_lower[close[0]] if close else None


def find(name: str) -> "ModelSource":
    """The source of a model by name.

    Raises:
        InvalidInputError: for an unknown name; names the nearest, or all.
    """
    from autoshard.tracing import resolve

    if name in CATALOGUE:
        return resolve(CATALOGUE[name])
    near = nearest(name)
    hint = f"did you mean {near}?" if near else f"known are {', '.join(CATALOGUE)};"
    raise InvalidInputError(
        f"unknown model {name!r}: {hint} A model is a name of `autoshard models`, a config.json or its folder, or"
        " package.module:factory"
    )
