"""What tracing found out, kept on disk: the second command on a model neither imports its class nor traces it again.

An answer is a JSON file under ``AUTOSHARD_CACHE`` (``off`` keeps nothing; by default the user's cache folder), named
after a hash of its question. Questions hold everything the answer depends on; a folder holds the answers of one state
of the code (this package's tracing and models, torch, transformers). Files are data: one that does not read as its
type is answered anew.
"""

import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from platformdirs import user_cache_path
from pydantic import TypeAdapter, ValidationError

VARIABLE = "AUTOSHARD_CACHE"
"""Environment variable: the folder, or ``off``."""
_KEPT_DAYS = 30
"""Answers of a state of the code that nobody asked for so long are deleted."""
_CODE = ("autoshard.tracing", "autoshard.ir", "autoshard._torch", "autoshard_models")
_PACKAGES = ("torch", "transformers", "einops")
"""What answers depend on: the files of this code, the versions of these packages."""

T = TypeVar("T")


def remembered(kind: str, question: Any, of: type[T], answer: Callable[[], T]) -> T:
    """The kept answer to a question, or what ``answer`` gives, which is kept.

    Args:
        kind: which function is asked, a word.
        question: its arguments as JSON data.
        of: type of the answer, which pydantic writes as JSON and checks when it is read.
        answer: finds it out; what it raises is not kept.
    """
    file = _file(kind, question)
    if file is None:
        return answer()
    adapter = TypeAdapter(of)
    try:
        return adapter.validate_json(file.read_bytes())
    except (OSError, ValidationError):
        found = answer()
    _write(file, adapter.dump_json(found))
    return found


def is_remembered(kind: str, question: Any) -> bool:
    """Whether an answer is kept."""
    file = _file(kind, question)
    return file is not None and file.is_file()


def _file(kind: str, question: Any) -> Path | None:
    folder = os.environ.get(VARIABLE) or str(user_cache_path("autoshard"))
    if folder == "off":
        return None
    try:
        text = json.dumps(question, sort_keys=True, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError):
        return None  # not data: an argument that only this process has
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
    return Path(folder) / _code_state() / f"{kind}-{digest[:32]}.json"


def _write(file: Path, data: bytes) -> None:
    """Write whole or not at all; a folder that cannot be written to is no reason to fail."""
    try:
        if not file.parent.exists():
            file.parent.mkdir(parents=True)
            _delete_old(file.parent)
        with tempfile.NamedTemporaryFile(dir=file.parent, suffix=".part", delete=False) as part:
            part.write(data)
        Path(part.name).replace(file)
        os.utime(file.parent)
    except OSError:
        return


def _delete_old(current: Path) -> None:
    for other in current.parent.iterdir():
        is_ours = other.is_dir() and len(other.name) == len(current.name) and other != current
        if is_ours and time.time() - other.stat().st_mtime > _KEPT_DAYS * 86400:
            shutil.rmtree(other, ignore_errors=True)


@cache
def _code_state() -> str:
    """Hash of the code that answers depend on."""
    state = hashlib.sha256()
    for name in _CODE:
        spec = find_spec(name)
        folders = (spec and spec.submodule_search_locations) or ()
        files = sorted(file for folder in folders for file in Path(folder).rglob("*.py"))
        for file in files or [Path(str(spec and spec.origin))]:
            state.update(file.name.encode())
            state.update(file.read_bytes())
    for name in _PACKAGES:
        state.update(f"{name} {version(name)}".encode())
    return state.hexdigest()[:16]
