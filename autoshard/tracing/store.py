"""What tracing found out, kept on disk: the second command on a model neither imports its class nor traces it again.

An answer is a JSON file under ``AUTOSHARD_CACHE`` (``off`` keeps nothing; by default the user's cache folder), named
after a hash of its question. Questions hold everything the answer depends on; a folder holds the answers of one state
of the code (this package's tracing and models, torch, transformers, kernels that transformers takes where installed).
Where one of these is installed in place, to be edited, nothing is kept. Files are data: one that does not read as its
type is answered anew.
"""

import hashlib
import json
import os
import re
import stat
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from platformdirs import user_cache_path
from pydantic import TypeAdapter, ValidationError

VARIABLE = "AUTOSHARD_CACHE"
"""Environment variable: the folder, or ``off``."""
_KEPT_DAYS = 30
"""Answers of a state of the code that nobody asked for so long are deleted."""
_MOST_BYTES = 64 * 2**20
"""A larger file is not ours."""
_CODE = ("autoshard.tracing", "autoshard.ir", "autoshard._torch", "autoshard_models")
_PACKAGES = ("torch", "transformers", "einops")
_OPTIONAL = ("causal-conv1d", "mamba-ssm", "flash-linear-attention", "kernels")
"""What answers depend on: the files of this code, the versions of these packages. transformers' recurrent mixers call
the optional ones where they are installed."""
_STATE = re.compile(r"[0-9a-f]{16}")
_ANSWER = re.compile(r"[a-z]+-[0-9a-f]{32}\.json|tmp\w+\.part")

_adapter: Callable[[Any], TypeAdapter[Any]] = cache(TypeAdapter)
"""Made once a type: for the whole IR it takes a while."""

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
    try:
        return _read(file, of)
    except (OSError, ValidationError):
        found = answer()
    _write(file, _adapter(of).dump_json(found))
    return found


def is_remembered(kind: str, question: Any, of: type[Any]) -> bool:
    """Whether an answer is kept that reads as its type."""
    file = _file(kind, question)
    try:
        return file is not None and _read(file, of) is not None
    except (OSError, ValidationError):
        return False


def _file(kind: str, question: Any) -> Path | None:
    folder = os.environ.get(VARIABLE) or str(user_cache_path("autoshard"))
    state = None if folder.lower() == "off" else _code_state()
    if state is None:
        return None
    try:
        text = json.dumps(question, sort_keys=True, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError):
        return None  # not data: an argument that only this process has
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
    return Path(os.path.expanduser(folder)) / state / f"{kind}-{digest[:32]}.json"


def _read(file: Path, of: type[T]) -> T:
    """Raises OSError or ValidationError if ``file`` holds no answer."""
    held = file.stat()
    if not stat.S_ISREG(held.st_mode) or held.st_size > _MOST_BYTES:
        raise OSError(f"{file} is no answer")
    found: T = _adapter(of).validate_json(file.read_bytes())
    if time.time() - file.parent.stat().st_mtime > 86400:
        _touch(file.parent)
    return found


def _touch(folder: Path) -> None:
    with suppress(OSError):  # somebody else's folder, which we may read
        os.utime(folder)


def _write(file: Path, data: bytes) -> None:
    """Write whole or not at all; a folder that cannot be written to is no reason to fail."""
    part = None
    try:
        if not file.parent.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            _delete_old(file.parent)
        with tempfile.NamedTemporaryFile(dir=file.parent, suffix=".part", delete=False) as opened:
            part = Path(opened.name)
            opened.write(data)
        part.replace(file)
    except OSError:
        if part is not None:
            with suppress(OSError):
                part.unlink(missing_ok=True)


def _delete_old(current: Path) -> None:
    """Delete old answers. The folder may hold whatever else the user has: only what is named like ours goes."""
    for other in current.parent.iterdir():
        is_ours = _STATE.fullmatch(other.name) and other.is_dir() and not other.is_symlink() and other != current
        if is_ours and time.time() - other.stat().st_mtime > _KEPT_DAYS * 86400:
            for file in other.iterdir():
                if _ANSWER.fullmatch(file.name):
                    file.unlink(missing_ok=True)
            if not any(other.iterdir()):
                other.rmdir()


def _is_edited_in_place(package: Distribution) -> bool:
    """Whether its code may change without its version, as `PEP 610`_ tells.

    .. _PEP 610: https://peps.python.org/pep-0610/
    """
    try:
        return bool(json.loads(package.read_text("direct_url.json") or "{}").get("dir_info", {}).get("editable"))
    except (ValueError, AttributeError):
        return False


@cache
def _code_state() -> str | None:
    """Hash of the code that answers depend on; None where some of it may change and keep its version."""
    state = hashlib.sha256()
    for name in _CODE:
        spec = find_spec(name)
        if spec is None:
            continue  # models that did not come along
        folders = [Path(folder) for folder in spec.submodule_search_locations or ()]
        files = [(file, file.relative_to(folder)) for folder in folders for file in sorted(folder.rglob("*.py"))]
        for file, path in files or [(Path(str(spec.origin)), Path(name))]:
            state.update(f"{name} {path.as_posix()} ".encode())
            state.update(file.read_bytes())
    for name in (*_PACKAGES, *_OPTIONAL):
        try:
            package = distribution(name)
        except PackageNotFoundError:
            continue
        if _is_edited_in_place(package):
            return None
        spec = find_spec(name) if name in _PACKAGES else None
        state.update(f"{name} {package.version} {spec and spec.origin}\n".encode())
    return state.hexdigest()[:16]
