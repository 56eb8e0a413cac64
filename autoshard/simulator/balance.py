r"""Layers per pipeline stage, balanced by time and bytes, the embedding's and the head's stage included.

Layers stay in model order. Of all partitions whose fullest stage fits, the one with the fastest slowest stage is taken
(of equal ones, that with the least bytes in its fullest stage). A dynamic program over (stage, layers dealt): with
:math:`c(i, j)` the seconds of layers i to j - 1 on a stage,

.. math:: T(s, j) = \min_i \max(T(s - 1, i), c(i, j))
"""

import numpy as np
from numpy.typing import NDArray

from autoshard.errors import InvalidInputError
from autoshard.sharding.degrees import partition
from autoshard.units import GIB

FloatArray = NDArray[np.float64]


def balanced_stages(
    layers: tuple[int, ...], part_s: FloatArray, part_bytes: FloatArray, pp: int, room_bytes: float = np.inf
) -> tuple[int, ...]:
    """Layers per stage.

    Args:
        layers: Kind of every layer, in model order.
        part_s: Seconds of the prologue, one layer of every kind, and the epilogue ``[kinds + 2]``.
        part_bytes: Bytes of the same (weights and caches of one device).
        pp: Stages, at most the number of layers.
        room_bytes: What a device has for them.

    Returns:
        The counts, which sum to the number of layers. The even partition where it is as good.

    Raises:
        InvalidInputError: if no partition fits; names the least that a device would need.
    """
    kinds = np.array(layers, dtype=np.int64)
    seconds = np.concatenate([[0.0], np.cumsum(part_s[1 + kinds])])
    held = np.concatenate([[0.0], np.cumsum(part_bytes[1 + kinds])])
    best = _deal(seconds, held, part_s, part_bytes, pp, room_bytes)
    if best is None:
        _, least = _loads(_deal(held, held, part_bytes, part_bytes, pp, np.inf), held, held, part_bytes, part_bytes)
        raise InvalidInputError(
            f"{len(layers)} layers over pp={pp} need at least {least / GIB:.1f} GiB a device, which has"
            f" {room_bytes / GIB:.1f} GiB for weights and caches"
        )
    even = partition(len(layers), pp)
    mine, other = (_loads(counts, seconds, held, part_s, part_bytes) for counts in (best, even))
    return even if other[0] <= mine[0] * (1 + 1e-12) and other[1] <= room_bytes else best


def _loads(
    counts: tuple[int, ...] | None, seconds: FloatArray, held: FloatArray, part_s: FloatArray, part_bytes: FloatArray
) -> tuple[float, float]:
    """Slowest and fullest stage of a partition."""
    assert counts is not None
    ends = np.concatenate([[0], np.cumsum(counts)])
    stage_s, stage_bytes = np.diff(seconds[ends]), np.diff(held[ends])
    for each, parts in ((stage_s, part_s), (stage_bytes, part_bytes)):
        each[0] += parts[0]
        each[-1] += parts[-1]
    return float(stage_s.max()), float(stage_bytes.max())


def _deal(
    seconds: FloatArray, held: FloatArray, part_s: FloatArray, part_bytes: FloatArray, pp: int, room: float
) -> tuple[int, ...] | None:
    n = len(seconds) - 1
    unreached = (np.inf, np.inf)
    best: list[list[tuple[float, float]]] = [[(0.0, 0.0)] + [unreached] * n]
    taken: list[list[int]] = []
    for stage in range(pp):
        row, chosen = [unreached] * (n + 1), [0] * (n + 1)
        extra_s = part_s[0] * (stage == 0) + part_s[-1] * (stage == pp - 1)
        extra_bytes = part_bytes[0] * (stage == 0) + part_bytes[-1] * (stage == pp - 1)
        for j in range(stage + 1, n - (pp - 1 - stage) + 1):
            for i in range(stage, j):
                size = float(held[j] - held[i] + extra_bytes)
                if size > room or best[stage][i] == unreached:
                    continue
                load = (
                    max(best[stage][i][0], float(seconds[j] - seconds[i] + extra_s)),
                    max(best[stage][i][1], size),
                )
                if load < row[j]:
                    row[j], chosen[j] = load, i
        best.append(row)
        taken.append(chosen)
    if best[pp][n] == unreached:
        return None
    counts, end = [], n
    for stage in range(pp - 1, -1, -1):
        counts.append(end - taken[stage][end])
        end = taken[stage][end]
    return tuple(reversed(counts))
