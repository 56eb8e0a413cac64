"""Runs a command and turns what went wrong into an exit code and one line."""

import os
import sys
from collections.abc import Sequence

import typer

from autoshard.cli.app import app
from autoshard.errors import AutoshardError

# typer brings its own click; the base class of its usage errors has no public name that all versions share.
_UsageError: type[Exception] = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")


def main(arguments: Sequence[str] | None = None) -> None:
    """The ``autoshard`` command; always ends by SystemExit."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    sys.exit(run(given or ["--help"]))


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code; an exception that is our bug passes through."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    try:
        result = app(list(arguments), prog_name="autoshard", standalone_mode=False)
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except AutoshardError as error:
        return _fail(str(error))
    except _UsageError as error:
        return _fail(error.format_message())  # type: ignore[attr-defined]
    except (KeyboardInterrupt, typer.Abort):
        return _fail("interrupted")
    except BrokenPipeError:
        # The reader went away (`| head`): not a failure, and nothing more can be written.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _fail(message: str) -> int:
    """One line on stderr."""
    print(f"autoshard: error: {' '.join(message.split())}", file=sys.stderr)  # noqa: T201
    return 2
