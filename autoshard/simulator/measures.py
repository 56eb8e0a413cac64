r"""What of a step is predicted: sums of factor tables, one for each measure of a workload.

A workload of one phase has one measure, the step itself. Serving has three, weighted sums of the same two passes (the
decode step and a chunk of prompts, `autoshard.cost.serving`):

======== ==============================================================================================
request  seconds of a request's life per token it makes, ``(TTFT + (osl - 1) TPOT) / osl``: the objective
tpot     seconds per output token
ttft     seconds to the first token
======== ==============================================================================================

Each is ``pp`` times its slowest stage, hand-over included. TPOT and TTFT each take their own slowest stage, the
objective the stage with the most work of a request, so that all three stay sums of factors.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from autoshard.cost import ServingLaw
from autoshard.simulator.points import Points
from autoshard.simulator.variables import ILLEGAL_S, Component, Factor
from autoshard.workload import Workload

FloatArray = NDArray[np.float64]
PROMPTS = " (prompts)"
"""Ends the label of a factor of the passes over prompts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """Seconds as ``pp * (slowest stage + send_s)``; ``parts`` are those of a stage, ``limit_s`` the upper limit.

    ``send_s`` is of every layout of the residual: ``[points, residual options]``.
    """

    name: str
    parts: tuple[Component, ...]
    send_s: FloatArray
    limit_s: float | None


def requests_per_rank(points: Points) -> FloatArray:
    """Requests in flight on one attention rank (a dp rank of every stage)."""
    return (points.sequences * points.microbatches).astype(np.float64)


def serving_measures(
    names: Sequence[str],
    decode: Mapping[str, Component],
    prompts: Mapping[str, Component],
    points: Points,
    workload: Workload,
    law: ServingLaw,
) -> tuple[Measure, Measure, Measure]:
    """The measures request, tpot and ttft; ``names`` are the parts in order.

    ``decode`` and ``prompts`` hold the components of a decode step and of a full chunk; a prompt is
    ``isl / chunk_tokens`` of one.
    """
    pp, osl = points.pp.astype(np.float64), float(workload.answer_tokens)
    requests = requests_per_rank(points)
    chunks = workload.prompt_tokens / law.chunk_tokens
    tpot = law.tpot_weights(pp, requests, osl)
    ttft = law.ttft_weights(pp, requests)
    crossing = law.prompt_passes * pp  # hand-overs of the request's own prompt; those of the others overlap
    zero = np.zeros(len(points))
    sent = _sent(decode), _sent(prompts)

    def measure(name: str, weights: tuple[FloatArray, FloatArray], sends: tuple[FloatArray, FloatArray],
                limit_s: float | None) -> Measure:  # fmt: skip
        scaled = (weights[0] / pp, weights[1] * chunks / pp)
        parts = tuple(_weighted(decode[n], prompts[n], scaled) for n in names)
        send_s = (sends[0][:, None] * sent[0] + sends[1][:, None] * chunks * sent[1]) / pp[:, None]
        return Measure(name=name, parts=parts, send_s=send_s, limit_s=limit_s)

    def whole(a: tuple[FloatArray, FloatArray], b: tuple[FloatArray, FloatArray]) -> tuple[FloatArray, FloatArray]:
        return (a[0] + (osl - 1.0) * b[0]) / osl, (a[1] + (osl - 1.0) * b[1]) / osl

    steps, first = (pp, zero), (crossing, crossing)
    return (
        measure("request", whole(ttft, tpot), whole(first, steps), None),
        measure("tpot", tpot, steps, workload.tpot_s),
        measure("ttft", ttft, first, workload.ttft_s),
    )


def _sent(components: Mapping[str, Component]) -> FloatArray:
    return components["send"].factors[0].table


def _weighted(decode: Component, prompts: Component, weights: tuple[FloatArray, FloatArray]) -> Component:
    """The weighted sum of two components; bytes are the decode step's, which holds the caches."""
    factors = [_scaled(f, weights[0], "") for f in decode.factors]
    factors += [_scaled(f, weights[1], PROMPTS) for f in prompts.factors]
    return replace(decode, factors=tuple(factors))


def _scaled(factor: Factor, weight: FloatArray, ending: str) -> Factor:
    by_point = weight.reshape(-1, *(1 for _ in factor.variables))
    table = np.where(factor.table >= ILLEGAL_S, ILLEGAL_S, factor.table * by_point)
    return replace(factor, table=table, label=factor.label + ending)
