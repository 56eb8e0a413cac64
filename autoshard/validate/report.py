"""What a validation found, per case."""

from dataclasses import asdict, dataclass
from typing import Any

from autoshard.validate.expectation import Traffic

TOLERANCE = {"float64": 1e-9, "float32": 1e-5}
"""Largest admitted max|a-b| / max|b| of the logits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationReport:
    """One case on real or simulated ranks: is the sharded model the unsharded one, and does it send what was planned.

    ``logits_max_rel_err`` is the worst over ranks, prompt and decode steps. ``expected`` was derived before the ranks
    started; ``observed`` is that of the first rank of every stage, or of the first that differs. ``parameter_bytes``
    are the fullest stage's. ``difference`` is the first thing found wrong, as a sentence; ``notes`` say what differs
    from what was asked (degrees that could not be kept).
    """

    name: str
    nproc: int
    device: str
    dtype: str
    degrees: dict[str, int]
    logits_max_rel_err: float
    tolerance: float
    collectives_match: bool
    expected: tuple[Traffic, ...]
    observed: tuple[Traffic, ...]
    parameter_bytes: int
    parameter_bytes_match: bool
    difference: str | None = None
    notes: tuple[str, ...] = ()
    simulated: bool = False

    @property
    def passed(self) -> bool:
        """Everything agreed."""
        return self.difference is None

    def to_dict(self) -> dict[str, Any]:
        """As JSON, ``passed`` included; an error that is not a number is null."""
        data = asdict(self)
        if self.logits_max_rel_err != self.logits_max_rel_err or self.logits_max_rel_err == float("inf"):
            data["logits_max_rel_err"] = None
        return {**data, "passed": self.passed}
