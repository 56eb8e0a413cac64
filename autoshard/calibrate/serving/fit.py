"""Fits the constants of the serving law, and predicts every model by constants that its rows had no part in.

Time per output token: every model counts alike, however many rows it has. Time to the first token goes with the way
that an engine schedules prompts: every model under an engine counts alike.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from autoshard.calibrate.optimise import FloatArray, Parameter, fit_positive
from autoshard.calibrate.serving.passes import Passes
from autoshard.calibrate.serving.skewed import SkewedPasses
from autoshard.calibrate.tables import BoolArray

_TPOT: tuple[Parameter, ...] = (Parameter("sequence_s", 2e-5, 1e-7, 5e-4), Parameter("interference", 0.9, 0.05, 3.0))
_STEP = Parameter("step_s", 1e-3, 1e-5, 2e-2)
_SKEW = Parameter("routing_skew", 0.6, 0.02, 1.25)
_TTFT = (Parameter("prompt_passes", 3.0, 0.2, 30.0), Parameter("queue_share", 0.07, 1e-4, 2.0))
_TPOT_CAUCHY, _TTFT_CAUCHY = 0.15, 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """Constants of the law (`autoshard.cost.serving`)."""

    step_s: float = 0.0
    sequence_s: float = 0.0
    interference: float = 0.0
    prompt_passes: float = 1.0
    queue_share: float = 0.0
    routing_skew: float = 0.0

    def host_s(self, passes: Passes) -> FloatArray:
        """Host time of a decode step."""
        return self.step_s * passes.turns + self.sequence_s * passes.requests

    def prompts_s(self, passes: Passes) -> FloatArray:
        """Share of the other requests' prompts in an output token's time."""
        return self.interference * (passes.requests - 1.0) * passes.prompt_s / passes.osl

    def tpot_s(self, passes: Passes) -> FloatArray:
        """Predicted time per output token; ``passes`` are those at the skew."""
        return passes.decode_s + self.host_s(passes) + self.prompts_s(passes)

    def ttft_s(self, passes: Passes) -> FloatArray:
        """Predicted time to the first token; ``passes`` are those at the skew."""
        once = passes.prompt_s + passes.decode_s + self.host_s(passes)
        return once * (self.prompt_passes + self.queue_share * (passes.requests - 1.0))


def _weights(groups: Sequence[Hashable]) -> FloatArray:
    """Every group counts alike."""
    counts = {group: groups.count(group) for group in set(groups)}
    return np.array([1.0 / counts[group] for group in groups])


def fit_constants(
    priced: SkewedPasses, tpot_s: FloatArray, ttft_s: FloatArray, groups: Sequence[tuple[str, str]]
) -> Constants:
    """Constants on given rows, each of a (model, engine).

    The skew of the routing only where models route, the host's time a step only where an engine does not hide it.
    """
    parameters = _TPOT
    if priced.passes[0].turns.any():
        parameters += (_STEP,)
    if len(priced.skews) > 1:
        parameters += (_SKEW,)

    def made(values: FloatArray) -> Constants:
        return Constants(**{p.field: float(v) for p, v in zip(parameters, values, strict=True)})

    def law(values: FloatArray) -> FloatArray:
        constants = made(values)
        return constants.tpot_s(priced.at(constants.routing_skew))

    weights = _weights([model for model, _ in groups])
    first = made(fit_positive(law, parameters, tpot_s, cauchy=_TPOT_CAUCHY, weights=weights))
    passes = priced.at(first.routing_skew)

    def later(values: FloatArray) -> Constants:
        return replace(first, **{p.field: float(v) for p, v in zip(_TTFT, values, strict=True)})

    weights = _weights(list(groups))
    return later(fit_positive(lambda v: later(v).ttft_s(passes), _TTFT, ttft_s, cauchy=_TTFT_CAUCHY, weights=weights))


def fit_rows(
    priced: SkewedPasses, tpot_s: FloatArray, ttft_s: FloatArray, groups: Sequence[tuple[str, str]], rows: BoolArray
) -> Constants:
    """`fit_constants` on some of the rows."""
    picked = [group for group, use in zip(groups, rows, strict=True) if use]
    return fit_constants(priced.take(rows), tpot_s[rows], ttft_s[rows], picked)


def leave_one_out(
    priced: SkewedPasses, tpot_s: FloatArray, ttft_s: FloatArray, groups: Sequence[tuple[str, str]]
) -> dict[str, Constants]:
    """Constants for every model from the rows of the other models (from all rows where it is alone)."""
    named = np.array([model for model, _ in groups])
    found = {}
    for model in sorted(set(named.tolist())):
        others = named != model
        found[model] = fit_rows(priced, tpot_s, ttft_s, groups, others if others.any() else ~others)
    return found
