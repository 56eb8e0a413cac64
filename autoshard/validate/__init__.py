"""Validation: same logits, same collectives, same bytes, from the cheapest tier to the most real.

`full_size` pretends one rank at the plan's true size, `simulate` runs all ranks as threads of this process, `launch`
starts real ones, `joined` is one of those that torchrun started. Read `runner`, then `worker`, which all ranks run.
"""

from autoshard.validate.cases import default_cases, plan_case, scale_degrees
from autoshard.validate.comm_log import CommLog
from autoshard.validate.full_size import FullSizeReport, run_full_size
from autoshard.validate.job import Case, ModelJob
from autoshard.validate.joined import check_joined, is_first
from autoshard.validate.launch import LaunchError, LaunchTimeout
from autoshard.validate.lift import lift_float32
from autoshard.validate.report import ValidationReport
from autoshard.validate.runner import validate

__all__ = [
    "Case",
    "CommLog",
    "FullSizeReport",
    "LaunchError",
    "LaunchTimeout",
    "ModelJob",
    "ValidationReport",
    "check_joined",
    "default_cases",
    "is_first",
    "lift_float32",
    "plan_case",
    "run_full_size",
    "scale_degrees",
    "validate",
]
