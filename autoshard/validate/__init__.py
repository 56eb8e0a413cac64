"""Validation on real ranks: same logits, same collectives, same bytes. Read `runner`, then `worker`."""

from autoshard.validate.cases import default_cases, plan_case, scale_degrees
from autoshard.validate.comm_log import CommLog
from autoshard.validate.job import Case, ModelJob
from autoshard.validate.launch import LaunchError
from autoshard.validate.lift import lift_float32
from autoshard.validate.report import ValidationReport
from autoshard.validate.runner import validate

__all__ = [
    "Case",
    "CommLog",
    "LaunchError",
    "ModelJob",
    "ValidationReport",
    "default_cases",
    "lift_float32",
    "plan_case",
    "scale_degrees",
    "validate",
]
