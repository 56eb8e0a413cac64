"""The array types of the cost model: anything numpy broadcasts goes in, float64 arrays come out."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float64]
"""Batched quantities, one element per strategy; all shapes broadcast."""


def floats(value: ArrayLike) -> FloatArray:
    """``value`` as a float64 array."""
    return np.asarray(value, dtype=np.float64)
