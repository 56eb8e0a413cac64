"""Fits positive parameters to measured times: robust least squares of log ratios, in numpy.

Levenberg-Marquardt steps in the logarithm of the parameters, within bounds. Residuals are ``log(predicted /
measured)``. A first pass minimises about their absolute values, a second the Cauchy loss ``log(1 + (r / c)^2)``, which
leaves out rows that no smooth law can explain (kernels that an autotuner picked badly).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
_SMALL = 0.02  # the absolute value is rounded off below this log ratio
_STEPS = 80


@dataclass(frozen=True, slots=True)
class Parameter:
    """A constant to fit: the field it fills, where to start, and its bounds (all positive)."""

    field: str
    start: float
    low: float
    high: float


def fit_positive(
    law: Callable[[FloatArray], FloatArray],
    parameters: Sequence[Parameter],
    measured: FloatArray,
    *,
    cauchy: float = 0.08,
    weights: FloatArray | None = None,
) -> FloatArray:
    """Values of ``parameters`` for which ``law`` of them is nearest to ``measured``.

    Args:
        law: From parameter values to predicted times, one for each of ``measured``.
        parameters: What to fit.
        measured: Times above zero.
        cauchy: Log ratio beyond which a row counts less and less.
        weights: Weight of every row; equal if None.
    """
    x = np.log([p.start for p in parameters])
    low, high = np.log([p.low for p in parameters]), np.log([p.high for p in parameters])
    known = np.log(measured)
    weight = np.ones(len(measured)) if weights is None else weights / weights.mean()

    def residuals(at: FloatArray) -> FloatArray:
        found: FloatArray = np.log(law(np.exp(at))) - known
        return found

    def absolute(r: FloatArray) -> float:
        return float(np.mean(weight * np.sqrt(r * r + _SMALL**2)))

    def robust(r: FloatArray) -> float:
        return float(np.mean(weight * np.log1p((r / cauchy) ** 2)))

    x = _descend(x, residuals, absolute, lambda r: weight / np.sqrt(r * r + _SMALL**2), low, high)
    x = _descend(x, residuals, robust, lambda r: weight / (cauchy**2 + r * r), low, high)
    return np.exp(x)


def _descend(
    x: FloatArray,
    residuals: Callable[[FloatArray], FloatArray],
    loss: Callable[[FloatArray], float],
    row_weights: Callable[[FloatArray], FloatArray],
    low: FloatArray,
    high: FloatArray,
) -> FloatArray:
    damping, r = 1e-2, residuals(x)
    best = loss(r)
    for _ in range(_STEPS):
        jacobian = np.stack([_derivative(residuals, r, x, i, high) for i in range(len(x))], 1)
        w = row_weights(r)
        matrix, gradient = (jacobian * w[:, None]).T @ jacobian, (jacobian * w[:, None]).T @ r
        gained = 0.0
        for _ in range(10):
            scale = np.diag(matrix) + 1e-6 * np.trace(matrix) / len(x) + 1e-12
            step = np.linalg.solve(matrix + damping * np.diag(scale), -gradient)
            trial = np.clip(x + np.clip(step, -0.7, 0.7), low, high)
            at = residuals(trial)
            value = loss(at)
            if np.isfinite(value) and value < best - 1e-8:
                gained, x, r, best, damping = best - value, trial, at, value, max(damping / 4, 1e-7)
                break
            damping *= 4
        if gained < 1e-6:
            break
    return x


def _derivative(
    residuals: Callable[[FloatArray], FloatArray], r: FloatArray, x: FloatArray, i: int, high: FloatArray
) -> FloatArray:
    moved = x.copy()
    step = 1e-3 if x[i] + 1e-3 <= high[i] else -1e-3
    moved[i] += step
    found: FloatArray = (residuals(moved) - r) / step
    return found
