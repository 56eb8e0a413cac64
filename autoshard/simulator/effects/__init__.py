"""Costs that are not additive: overlap, two-batch overlap, contention, skew over layers. Read `laws`, then `model`."""

from autoshard.simulator.effects.laws import HIDDEN, SLOWDOWN
from autoshard.simulator.effects.model import EffectModel, build_effects

__all__ = ["HIDDEN", "SLOWDOWN", "EffectModel", "build_effects"]
