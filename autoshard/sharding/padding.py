"""Widths that do not divide: how they are filled up, so that every rank has a part of the same size.

A dim of ``packed`` parts side by side (gate|up) has each of them filled up by itself. A part is of ``outer`` times
``group`` times ``unit`` elements: ``unit`` of them stay together (the columns of one head) and ``group`` units belong
together (the query heads of one kv head). With at least as many outer pieces as ranks, whole pieces are added at the
end; with fewer, ranks share a piece, and every group is filled up to a multiple of them. For a plain width both are 1:

    to = ceil(width / ranks) * ranks

What is added is zero: rows of a table nobody looks up, experts no token is sent to, heads and columns that the next
matrix multiplies by zero. So results are exact, and what it costs is bytes and time. No rank may have nothing else.
"""

from typing import Any, Literal

Grain = tuple[int, int]
"""(units of a group, elements of a unit)."""

PLAIN: Grain = (1, 1)

Padding = Literal["never", "always", "asked"]
"""When a width is filled up: never, wherever it must be, or only if the user allows it (``--allow-uneven``)."""


def padded_width(width: int, ranks: Any, *, packed: int = 1, grain: Grain = PLAIN) -> Any:
    """Elements of a dim of ``width`` once it is filled up for ``ranks``, a whole number or an array of them."""
    group, unit = grain
    outer = width // packed // (group * unit)
    whole = -(-outer // ranks) * ranks * group
    if group == 1:
        return packed * unit * whole
    sharing = ranks // outer + (ranks < outer)  # ranks that share a piece
    shared = outer * (-(-group // sharing) * sharing)
    return packed * unit * ((ranks <= outer) * whole + (ranks > outer) * shared)


def fits(width: int, ranks: int, *, packed: int = 1, grain: Grain = PLAIN) -> bool:
    """Whether every one of ``ranks`` ranks has something besides padding."""
    group, unit = grain
    outer = width // packed // (group * unit)
    if ranks <= outer or group == 1:
        return -(-outer // ranks) * (ranks - 1) < outer
    sharing = ranks // outer
    return ranks % outer == 0 and -(-group // sharing) * (sharing - 1) < group


def padded_runs(width: int, ranks: int, *, packed: int = 1, grain: Grain = PLAIN) -> tuple[tuple[int, int], ...]:
    """What lies where in a filled-up dim: runs (start, stop) of the dim itself in order; padding starts at ``width``.

    The lengths of all runs sum to `padded_width`.
    """
    to = padded_width(width, ranks, packed=packed, grain=grain)
    if to == width:
        return ((0, width),)
    group, unit = grain
    outer = width // packed // (group * unit)
    pieces = packed if ranks <= outer or group == 1 else packed * outer  # each is followed by its padding
    have, more = width // pieces, (to - width) // pieces
    found: list[tuple[int, int]] = []
    for i in range(pieces):
        found += [(i * have, (i + 1) * have), (width, width + more)]
    return tuple(found)
