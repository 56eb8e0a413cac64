"""Sets of integer rows as sorted numbers: exact prefix masks without a dense table.

A row of option indices is one number in mixed radix; the prefixes of all legal rows are sorted once, and asking whether
a prefix can be completed is a binary search. It stays small where a table over all sizes would not (24,576 devices).
"""

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


class PrefixSet:
    """The set of prefixes of some rows ``[n, width]`` with option indices below ``sizes``."""

    def __init__(self, rows: IntArray, sizes: IntArray) -> None:
        self.sizes = sizes
        self._sorted: list[IntArray] = []
        key = np.zeros(len(rows), dtype=np.int64)
        for j, size in enumerate(sizes):
            key = key * size + rows[:, j]
            self._sorted.append(np.unique(key))
        self._order = np.argsort(key, kind="stable")
        self._full = key[self._order]

    def _key(self, rows: IntArray, width: int) -> IntArray:
        key = np.zeros(len(rows), dtype=np.int64)
        for j in range(width):
            key = key * self.sizes[j] + rows[:, j]
        return key

    def allowed(self, rows: IntArray, position: int) -> BoolArray:
        """Options of column ``position`` that some row with the same earlier columns has: [n, sizes[position]]."""
        size = int(self.sizes[position])
        key = self._key(rows, position)[:, None] * size + np.arange(size)
        return _contains(self._sorted[position], key)

    def index(self, rows: IntArray) -> IntArray:
        """Position of full rows in the rows given at construction, -1 where absent."""
        key = self._key(rows, len(self.sizes))
        at = np.searchsorted(self._full, key).clip(max=max(len(self._full) - 1, 0))
        found = np.where(self._full[at] == key, self._order[at], -1)
        in_range = ((rows[:, : len(self.sizes)] >= 0) & (rows[:, : len(self.sizes)] < self.sizes)).all(1)
        return np.where(in_range, found, -1)


def _contains(ordered: IntArray, keys: IntArray) -> BoolArray:
    at = np.searchsorted(ordered, keys).clip(max=max(len(ordered) - 1, 0))
    found: BoolArray = ordered[at] == keys
    return found
