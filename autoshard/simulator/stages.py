"""Which pipeline stages can be the slowest or the fullest. How layers are dealt out: `autoshard.sharding.stages`."""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from autoshard.sharding.degrees import partition

FloatArray = NDArray[np.float64]


@lru_cache(maxsize=512)
def stage_profiles(layers: tuple[int, ...], num_kinds: int, pp: int, stages: tuple[int, ...] = ()) -> FloatArray:
    """Counts ``[profiles, prologue | kinds | epilogue]`` of the stages that can bind.

    ``layers`` is the kind of every layer in order, ``stages`` the layers of each stage where the even partition is not
    meant. A stage whose counts are all at most another's can neither be the
    slowest nor the fullest, and is left out.
    """
    rows = []
    start = 0
    for stage, count in enumerate(stages or partition(len(layers), pp)):
        kinds = np.bincount(np.array(layers[start : start + count], dtype=np.int64), minlength=num_kinds)
        rows.append([float(stage == 0), *kinds.astype(float), float(stage == pp - 1)])
        start += count
    found: list[list[float]] = []
    for row in sorted(map(tuple, rows), reverse=True):
        if not any(all(a <= b for a, b in zip(row, other, strict=True)) for other in found):
            found = [o for o in found if not all(a <= b for a, b in zip(o, row, strict=True))]
            found.append(list(row))
    return np.array(found)


def padded_profiles(
    layers: tuple[int, ...], num_kinds: int, pps: NDArray[np.int64], stages: tuple[int, ...] = ()
) -> FloatArray:
    """Profiles of several pp at once: ``[len(pps), profiles, parts]``, padded with repeats of the first.

    ``stages`` is the partition of as many stages as it has.
    """
    each = [stage_profiles(layers, num_kinds, int(pp), stages if len(stages) == pp else ()) for pp in pps]
    most = max(len(p) for p in each)
    return np.stack([np.concatenate([p, np.repeat(p[:1], most - len(p), 0)]) for p in each])
