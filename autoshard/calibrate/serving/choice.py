"""Choice under a limit: is the layout and concurrency picked by prediction as good as the best measured?

Among the runs of one model, engine, device and pair of lengths, in at least two layouts, the one with the largest
predicted tokens/s/GPU whose predicted TPOT keeps the limit is picked, and its measured TPOT and rate are looked at.

A candidate is a layout and a concurrency. Where a table has it more than once (another version of the engine, another
checkpoint of the same shapes, speculative decoding that the table does not name), what was measured of it is the
median: no prediction could pick one of the repeats. ``apart`` has the figures with every repeat a candidate.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from autoshard.calibrate.optimise import FloatArray
from autoshard.calibrate.serving.rows import Run
from autoshard.units import MS

LIMITS_MS = (15, 25, 40, 60)
_CANDIDATE = ("model", "engine", "device", "label", "isl", "osl", "tp", "dp", "ep", "concurrency")
TOLERATED = 1.1
"""A limit counts as missed where the measured TPOT is more than this times it."""


def choices_under_limits(runs: Sequence[Run], predicted_s: FloatArray, measured_s: FloatArray) -> dict[str, Any]:
    """``picks`` made, ``missed_share`` of them over the limit, ``regret`` of the others against the best measured.

    A case without a run that keeps the limit, measured or predicted, is no pick.
    """
    repeats: dict[tuple[Any, ...], list[int]] = {}
    for i, run in enumerate(runs):
        repeats.setdefault(tuple(getattr(run, name) for name in _CANDIDATE), []).append(i)
    merged = [index[0] for index in repeats.values()]
    said = np.array([float(np.median(predicted_s[index])) for index in repeats.values()])
    real = np.array([float(np.median(measured_s[index])) for index in repeats.values()])
    found = _choices([runs[i] for i in merged], said, real)
    if len(merged) < len(runs):
        apart = _choices(runs, predicted_s, measured_s)
        found["apart"] = {key: apart[key] for key in ("picks", "missed_share", "regret")}
    return found


def _choices(runs: Sequence[Run], predicted_s: FloatArray, measured_s: FloatArray) -> dict[str, Any]:
    groups: dict[tuple[Any, ...], list[int]] = {}
    for i, run in enumerate(runs):
        groups.setdefault((run.model, run.engine, run.device, run.label, run.isl, run.osl), []).append(i)
    missed: list[bool] = []
    regrets: list[float] = []
    by: dict[str, list[bool]] = {}
    for key, index in groups.items():
        at = np.array(index)
        if len({(runs[i].tp, runs[i].dp, runs[i].ep) for i in index}) < 2:
            continue
        per_gpu = np.array([runs[i].concurrency / runs[i].gpus for i in index])
        real, said = measured_s[at], predicted_s[at]
        for limit_s in (ms * MS for ms in LIMITS_MS):
            keeps, thought = real <= limit_s, said <= limit_s
            if not keeps.any() or not thought.any():
                continue
            pick = int(np.where(thought, per_gpu / said, -1.0).argmax())
            over = bool(real[pick] > TOLERATED * limit_s)
            missed.append(over)
            by.setdefault(f"{key[0]} {key[1]} {key[2]}", []).append(over)
            if not over:
                best = float((per_gpu / real)[keeps].max())
                regrets.append(max(0.0, 1.0 - float(per_gpu[pick] / real[pick]) / best))
    return {
        "limits_ms": list(LIMITS_MS),
        "picks": len(missed),
        "missed_share": float(np.mean(missed)) if missed else None,
        "regret": float(np.mean(regrets)) if regrets else None,
        "missed_by": {name: f"{sum(each)} of {len(each)}" for name, each in by.items() if any(each)},
    }
