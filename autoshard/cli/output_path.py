"""Checks an output path before minutes are spent on what would be written there."""

import tempfile
from pathlib import Path

from autoshard.errors import InvalidInputError


def check_writable(path: Path) -> None:
    """Raise InvalidInputError unless a file can be made at ``path``; leaves nothing behind."""
    if path.is_dir():
        raise InvalidInputError(f"cannot write {path}: it is a folder")
    if not path.parent.is_dir():
        raise InvalidInputError(f"cannot write {path}: there is no folder {path.parent}")
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}."):
            pass
    except OSError as error:
        raise InvalidInputError(f"cannot write {path}: {error.strerror}") from None
