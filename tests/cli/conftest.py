"""Commands run in this process, with what they printed."""

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from autoshard.api import models
from autoshard.cli.run import run
from autoshard.ir import OpGraph
from autoshard.tracing import ModelSource


@dataclass(frozen=True)
class Ran:
    """Exit code and output of one command."""

    code: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """The one line of a user's mistake; asserts that it is one, and that nothing else was printed."""
        assert self.code == 2, (self.code, self.err)
        assert self.out == ""
        assert self.err.startswith("autoshard: error: ")
        assert self.err.endswith("\n") and self.err.count("\n") == 1, self.err
        return self.err.removeprefix("autoshard: error: ").rstrip()


Command = Callable[..., Ran]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """``command("plan", "mixtral-8x7b", ...)``."""

    def call(*arguments: str) -> Ran:
        capsys.readouterr()
        code = run(arguments)
        out, err = capsys.readouterr()
        return Ran(code, out, err)

    return call


@pytest.fixture(autouse=True)
def _unchanged_search_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))


@pytest.fixture
def write_config(tmp_path: Path) -> Callable[[str], str]:
    """Writes a config.json; returns its path."""

    def write(text: str) -> str:
        path = tmp_path / "tiny" / "config.json"
        path.parent.mkdir()
        path.write_text(text)
        return str(path)

    return write


@pytest.fixture(scope="session", autouse=True)
def _trace_each_source_once() -> Iterator[None]:
    """Tracing is pure and takes a second: these tests, which are not about it, share its results."""
    traced: dict[str, OpGraph] = {}
    original = models.trace_source

    def cached(source: ModelSource) -> OpGraph:
        key = json.dumps(source.to_dict(), sort_keys=True)
        if key not in traced:
            traced[key] = original(source)
        return traced[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(models, "trace_source", cached)
        yield
