"""What a target of an export is."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from autoshard.export.artifact import Export
from autoshard.ir import OpGraph
from autoshard.plan import PlanData
from autoshard.sharding import Degrees, Strategy
from autoshard.sharding.option import Choice

Space = tuple[Mapping[str, int], Mapping[str, Choice]]
"""A part of the space: degrees and choices that are fixed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A program that a plan can be written for.

    Attributes:
        name: As on the command line.
        version: Of the program, that its rules and flags were read from.
        reasons: Why the program cannot run a strategy of a model, a sentence each; empty if it can.
        strategy: The strategy the program would run at given degrees, or None if it has none there.
        write: The export of a plan that has no reasons against it.
        settles: Rules of ``autoshard check`` about defaults that its files replace: ``reasons`` judges what they say.
        spaces: Parts of the space of which it takes any choice; empty for a program that makes its own choices.
    """

    name: str
    version: str
    reasons: Callable[[OpGraph, Strategy], tuple[str, ...]]
    strategy: Callable[[OpGraph, Degrees], Strategy | None]
    write: Callable[[PlanData], Export]
    spaces: tuple[Space, ...] = ()
    settles: frozenset[str] = frozenset()
