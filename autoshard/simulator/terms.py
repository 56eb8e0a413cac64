"""Opens one prediction into its terms: which op or collective takes how much of the step."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from autoshard.simulator.simulator import Simulator


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """Seconds of the step spent in one op or tensor of one part (``what`` is the op's kind, or ``collective``)."""

    part: str
    label: str
    what: str
    seconds: float


def terms(simulator: Simulator, point: int, dims: tuple[int, ...]) -> tuple[Term, ...]:
    """Terms of the step of one strategy; they sum to its ``step_s``.

    The slowest stage is opened, times pp: every stage is charged as long as the slowest.
    """
    found = list(_additive(simulator, point, dims))
    if simulator.effects is not None:
        opened = simulator.effects.opened(point, dims)
        found = [Term(part=part, label=label, what=what, seconds=value) for part, label, what, value in opened]
    pp = float(simulator.points.pp[point])
    if pp > 1:
        sent = float(simulator.send_s[point, dims[0]]) * pp
        found.append(Term(part="send", label="stage", what="send_recv", seconds=sent))
    return tuple(found)


def _additive(simulator: Simulator, point: int, dims: tuple[int, ...]) -> Iterator[Term]:
    at, options = np.array([point]), np.array([dims], dtype=np.int64)
    seconds = np.stack([c.seconds(at, options) for c in simulator.parts], 1)
    profiles = simulator.profiles_of(at)[0]
    slowest = profiles[(profiles * seconds).sum(-1).argmax()]
    pp = float(simulator.points.pp[point])
    for count, part in zip(slowest, simulator.parts, strict=True):
        for factor in part.factors:
            value = float(factor.at(at, options)[0]) * count * pp
            if value > 0:
                yield Term(part=part.name, label=factor.label, what=factor.what, seconds=value)
