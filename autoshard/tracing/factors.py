"""Factors: what tensor dimensions are made of, under union-find.

A dimension is an :data:`Axis`, a sequence of factors, outermost first; its size is their product. ``view`` refines a
factor into a product, element-wise ops and contractions say that two axes are the same one. What remains at the end
names the structure of a weight: a q projection's rows come out as ``(kv_heads, group, head_dim)``, a fused gate/up as
``(2, intermediate)`` when the halves lie side by side and as ``(intermediate, 2)`` when they alternate.
"""

import math
from collections.abc import Sequence

Axis = tuple[int, ...]
"""Factors of one dimension, outermost first; empty for size one."""


class Factors:
    """A forest of factors. Integers stand for factors; sizes never change once given."""

    def __init__(self) -> None:
        self._size: list[int] = []
        self._parent: list[int] = []
        self._parts: dict[int, Axis] = {}

    def new(self, size: int) -> Axis:
        """A fresh axis of ``size`` elements."""
        if size == 1:
            return ()
        self._size.append(size)
        self._parent.append(len(self._parent))
        return (len(self._parent) - 1,)

    def leaves(self, axis: Axis) -> Axis:
        """The finest known factors of ``axis``, by representative."""
        found: list[int] = []
        for factor in axis:
            root = self._find(factor)
            found.extend(self.leaves(self._parts[root]) if root in self._parts else (root,))
        return tuple(found)

    def size(self, axis: Axis) -> int:
        """Elements of ``axis``."""
        return math.prod(self._size[f] for f in axis)

    def unify(self, a: Axis, b: Axis) -> None:
        """Declare two axes of equal size the same, refining either as needed.

        Sizes that do not divide each other (a concatenation met a product) leave the rest of the axes apart: less is
        known then, nothing wrong is claimed.
        """
        left, right = list(self.leaves(a)), list(self.leaves(b))
        while left and right:
            x, y = left.pop(), right.pop()
            if x == y:
                continue
            size_x, size_y = self._size[x], self._size[y]
            if size_x == size_y:
                self._parent[y] = x
                # Other positions of the two lists may hold the same factors.
                left, right = list(self.leaves(tuple(left))), list(self.leaves(tuple(right)))
            elif size_x % size_y == 0:
                left += self._split(x, size_y)
                right.append(y)
            elif size_y % size_x == 0:
                right += self._split(y, size_x)
                left.append(x)
            else:
                return

    def view(self, axes: Sequence[Axis], sizes: Sequence[int]) -> list[Axis]:
        """Axes of a tensor with ``axes`` after a view to ``sizes`` (row-major, same number of elements)."""
        remaining = [f for axis in axes for f in self.leaves(axis)]
        out: list[Axis] = []
        for size in reversed(sizes):
            axis: list[int] = []
            while size > 1:
                if not remaining:
                    return [self.new(s) for s in sizes]
                factor = remaining.pop()
                have = self._size[factor]
                if size % have == 0:
                    axis.insert(0, factor)
                    size //= have
                elif have % size == 0:
                    outer, inner = self._split(factor, size)
                    # The split may have refined a factor that occurs again further out.
                    remaining = list(self.leaves((*remaining, outer)))
                    axis.insert(0, inner)
                    size = 1
                else:
                    return [self.new(s) for s in sizes]
            out.insert(0, tuple(axis))
        return out

    def _find(self, factor: int) -> int:
        while self._parent[factor] != factor:
            self._parent[factor] = self._parent[self._parent[factor]]
            factor = self._parent[factor]
        return factor

    def _split(self, factor: int, inner: int) -> Axis:
        """Refine a leaf into (size / inner, inner)."""
        parts = (*self.new(self._size[factor] // inner), *self.new(inner))
        self._parts[factor] = parts
        return parts
