"""Fits the constants of the serving law, and predicts every model by constants that its rows had no part in.

Host forms are tried, too: which one predicts a model is chosen on the others, each of them left out in turn.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from autoshard.calibrate.optimise import FloatArray, Parameter, fit_positive
from autoshard.calibrate.serving.passes import Passes
from autoshard.calibrate.tables import BoolArray

_SEQUENCE = Parameter("sequence_s", 2e-5, 1e-7, 5e-4)
_OP = Parameter("op_s", 3e-6, 1e-8, 5e-5)
_INTERFERENCE = Parameter("interference", 0.9, 0.05, 3.0)
_PASSES = Parameter("prompt_passes", 3.0, 0.2, 30.0)
_QUEUE = Parameter("queue_share", 0.07, 1e-4, 2.0)
FORMS: Mapping[str, tuple[Parameter, ...]] = {
    "sequences": (_SEQUENCE, _INTERFERENCE),
    "sequences and ops": (_SEQUENCE, _INTERFERENCE, _OP),
    "ops": (_INTERFERENCE, _OP),
}
"""What the host's time goes with: requests on a rank, fused ops of the graph, or both."""
_TPOT_CAUCHY, _TTFT_CAUCHY = 0.15, 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """Constants of the law; ``form`` is the host's."""

    form: str
    sequence_s: float = 0.0
    op_s: float = 0.0
    interference: float = 0.0
    prompt_passes: float = 1.0
    queue_share: float = 0.0

    def host_s(self, passes: Passes) -> FloatArray:
        """Host time of a decode step."""
        return self.sequence_s * passes.requests + self.op_s * passes.ops

    def prompts_s(self, passes: Passes) -> FloatArray:
        """Share of the other requests' prompts in an output token's time."""
        return self.interference * (passes.requests - 1.0) * passes.prompt_s / passes.osl

    def tpot_s(self, passes: Passes) -> FloatArray:
        """Predicted time per output token."""
        return passes.decode_s + self.host_s(passes) + self.prompts_s(passes)

    def ttft_s(self, passes: Passes) -> FloatArray:
        """Predicted time to the first token."""
        once = passes.prompt_s + passes.decode_s + self.host_s(passes)
        return once * (self.prompt_passes + self.queue_share * (passes.requests - 1.0))


def _take(passes: Passes, rows: BoolArray) -> Passes:
    return Passes(passes.decode[rows], passes.prompt[rows], passes.ops[rows], passes.requests[rows], passes.osl[rows])


def _weights(groups: Sequence[tuple[str, str]]) -> FloatArray:
    """Every (model, engine) counts alike."""
    counts = {group: groups.count(group) for group in set(groups)}
    return np.array([1.0 / counts[group] for group in groups])


def fit_constants(
    passes: Passes, tpot_s: FloatArray, ttft_s: FloatArray, groups: Sequence[tuple[str, str]], form: str
) -> Constants:
    """Constants of a form on given rows."""
    weights = _weights(list(groups))

    def made(values: FloatArray) -> Constants:
        return Constants(form=form, **{p.field: float(v) for p, v in zip(FORMS[form], values, strict=True)})

    first = made(
        fit_positive(lambda v: made(v).tpot_s(passes), FORMS[form], tpot_s, cauchy=_TPOT_CAUCHY, weights=weights)
    )
    once = passes.prompt_s + passes.decode_s + first.host_s(passes)
    values = fit_positive(
        lambda v: once * (v[0] + v[1] * (passes.requests - 1.0)),
        (_PASSES, _QUEUE),
        ttft_s,
        cauchy=_TTFT_CAUCHY,
        weights=weights,
    )
    return Constants(
        form=form,
        sequence_s=first.sequence_s,
        op_s=first.op_s,
        interference=first.interference,
        prompt_passes=float(values[0]),
        queue_share=float(values[1]),
    )


def fit_rows(
    passes: Passes,
    tpot_s: FloatArray,
    ttft_s: FloatArray,
    groups: Sequence[tuple[str, str]],
    rows: BoolArray,
    form: str,
) -> Constants:
    """`fit_constants` on some of the rows."""
    picked = [g for g, use in zip(groups, rows, strict=True) if use]
    return fit_constants(_take(passes, rows), tpot_s[rows], ttft_s[rows], picked, form)


def choose_form(
    passes: Passes, tpot_s: FloatArray, ttft_s: FloatArray, groups: Sequence[tuple[str, str]], rows: BoolArray
) -> str:
    """The form with the least error on models of ``rows``, each left out in turn; the first where one is left."""
    models = np.array([model for model, _ in groups])
    inside = sorted(set(models[rows].tolist()))
    if len(inside) < 2:
        return next(iter(FORMS))
    scores = {}
    for form in FORMS:
        errors = []
        for model in inside:
            fitted = fit_rows(passes, tpot_s, ttft_s, groups, rows & (models != model), form)
            tested = rows & (models == model)
            errors.append(float(np.median(np.abs(fitted.tpot_s(_take(passes, tested)) / tpot_s[tested] - 1.0))))
        scores[form] = float(np.mean(errors))
    return min(scores, key=lambda form: scores[form])


def leave_one_out(
    passes: Passes, tpot_s: FloatArray, ttft_s: FloatArray, groups: Sequence[tuple[str, str]]
) -> dict[str, Constants]:
    """Constants for every model, form and all, from the rows of the other models (of all rows where it is alone)."""
    models = np.array([model for model, _ in groups])
    found = {}
    for model in sorted(set(models.tolist())):
        others = models != model
        if not others.any():
            others = np.ones(len(models), dtype=bool)
        form = choose_form(passes, tpot_s, ttft_s, groups, others)
        found[model] = fit_rows(passes, tpot_s, ttft_s, groups, others, form)
    return found
