"""What an export is: a few text files, how to start, and what to know."""

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from autoshard.errors import InvalidInputError


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedFile:
    """A text file of an export."""

    name: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """A plan written for ``target``; ``version`` is what it was written for, ``command`` how one replica is started.

    ``notes`` are sentences a reader should know: what the target decides by itself, how replicas are started.
    """

    target: str
    version: str
    command: str
    files: tuple[ExportedFile, ...]
    notes: tuple[str, ...] = ()


def save(export: Export, folder: Path) -> tuple[Path, ...]:
    """Write an export's files into ``folder`` (made if its parent is there), each whole or not at all.

    Raises:
        InvalidInputError: when the folder cannot be made or written to.
    """
    written = []
    try:
        folder.mkdir(exist_ok=True)
        for file in export.files:
            handle, temporary = tempfile.mkstemp(dir=folder, prefix=f".{file.name}.")
            with os.fdopen(handle, "w", encoding="utf-8") as out:
                out.write(file.text)
            Path(temporary).chmod(0o755 if file.name.endswith(".sh") else 0o644)
            written.append(Path(temporary).replace(folder / file.name))
    except OSError as error:
        raise InvalidInputError(f"cannot write {folder}: {error.strerror}") from None
    return tuple(written)
