"""What is served, and within which limits. Never imports torch."""

from autoshard.workload.effects import EFFECTS, Effect, parse_effects
from autoshard.workload.workload import Phase, Workload, normalise_dtype

__all__ = ["EFFECTS", "Effect", "Phase", "Workload", "normalise_dtype", "parse_effects"]
