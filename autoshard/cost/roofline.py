r"""The roofline that all kernel laws share, with arithmetic and loads that overlap only so well.

.. math:: (c^p + m^p)^{1/p}

of the seconds ``c`` of arithmetic and ``m`` of loads: ``p = 1`` is one after the other, ``p \to \infty`` the ideal
roofline. Monotone in both, so that no faster device is ever slower.
"""

import math

import numpy as np

from autoshard.cost.arrays import FloatArray


def overlapped_s(one_s: FloatArray, other_s: FloatArray, overlap: float) -> FloatArray:
    """Seconds of two activities with overlap exponent ``overlap`` (infinite: the longer one)."""
    longer, shorter = np.maximum(one_s, other_s), np.minimum(one_s, other_s)
    if math.isinf(overlap):
        return longer
    ratio = np.divide(shorter, longer, out=np.zeros(np.shape(longer)), where=longer > 0)
    found: FloatArray = longer * (1.0 + ratio**overlap) ** (1.0 / overlap)
    return found


def saturated_bytes(num_bytes: FloatArray, saturation_bytes: float) -> FloatArray:
    """Bytes that take at full rate as long as ``num_bytes`` at the rate they reach: ``x (1 + sqrt(s / x))``."""
    return num_bytes + np.sqrt(num_bytes * saturation_bytes)
