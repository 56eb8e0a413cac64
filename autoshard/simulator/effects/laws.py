r"""Formulas and constants of the costs that are not additive.

**Overlap.** Work of ``x`` seconds runs beside a collective of ``y``. While the collective runs, the work goes on at
``1 / SLOWDOWN`` of its speed, so that hiding saves only that share of the time hidden:

.. math:: t(x, y) = \max(y,\; x + (1 - h) y), \qquad h = 1 / \mathrm{SLOWDOWN}

never less than either, never more than their sum.

**Contention.** Of ``x`` a part ``x_l`` is collectives of its own that cross link ``l`` (NVLink, or the NIC), of ``y`` a
part ``y_l``. Bytes of both take turns on a link: also :math:`t \ge x_l + y_l` for each link.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

SLOWDOWN = 1.189
"""Of computation beside a collective. [measured: mean over GPUs and models, largest 1.40; Lee et al., "Characterizing
Compute-Communication Overlap in GPU-Accelerated Distributed Deep Learning", July 2025]"""
HIDDEN = 1.0 / SLOWDOWN
"""Share of the time hidden that is saved."""

SKEW_LEVELS = (0.5, 1.0, 1.5)
"""Skew of a layer relative to the mean over layers. [assumed: an even spread; that layers differ, and models more than
batches, is measured by others, how much by layer is not public]"""
_GOLDEN = 0.6180339887498949


def beside_s(x: FloatArray, y: FloatArray) -> FloatArray:
    """Seconds of work ``x`` and a collective ``y`` at once."""
    found: FloatArray = np.maximum(y, x + (1.0 - HIDDEN) * y)
    return found


def sharing_s(found: FloatArray, pairs: Sequence[tuple[FloatArray, FloatArray]]) -> FloatArray:
    """``found``, or the longest that a link is busy: ``pairs`` are the seconds of both sides on each link."""
    for own, other in pairs:
        found = np.maximum(found, own + other)
    return found


def layer_levels(num_layers: int) -> tuple[int, ...]:
    """Index into `SKEW_LEVELS` of every layer with routed experts, in model order.

    Levels come equally often and in no order of depth: the fractional part of ``i`` times the golden ratio, in thirds.
    """
    return tuple(int(len(SKEW_LEVELS) * ((i * _GOLDEN) % 1.0)) for i in range(num_layers))
