"""The reward of one evaluated strategy, the same for the agent and for the Gymnasium environment.

    reward = α · normalised throughput + β · improvement over the best so far

Normalised throughput is relative to the best so far, on a log scale: layouts differ by orders of magnitude, and a
linear scale would leave most of them indistinguishable from 0. Infeasible strategies lie below every feasible one.
"""

import numpy as np

from autoshard.search.protocol import FloatArray, Scores

LOG_FLOOR = -4.0
"""Feasible strategies worse than e^-4 of the best are not told apart."""


def reward(scores: Scores, best_before: float, *, alpha: float, beta: float) -> FloatArray:
    """[n] rewards of strategies scored together, given the best throughput before them (0 if none)."""
    feasible = scores.throughput > 0
    throughput = np.where(feasible, scores.throughput, 1.0)
    reference = max(best_before, float(scores.throughput.max(initial=0.0)))
    relative = np.log(throughput / reference) if reference > 0 else np.zeros_like(throughput)
    normalised = np.where(feasible, np.clip(relative, LOG_FLOOR, 0.0), LOG_FLOOR - 1.0 - scores.violation)
    gain = throughput / best_before - 1.0 if best_before > 0 else np.ones_like(throughput)
    improvement = np.where(feasible, np.clip(gain, 0.0, 1.0), 0.0)
    return alpha * normalised + beta * improvement
