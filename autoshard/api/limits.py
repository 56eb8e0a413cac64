"""Why no plan keeps the limits of mixed serving, and what would help."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from autoshard.api.relax import LIMIT_FACTORS, changed, first_that_holds, looser_ms, what_helps
from autoshard.search.exact import ExactSearch
from autoshard.simulator import Simulator
from autoshard.units import MS

TOGETHER = (1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 4.0)
"""Multiples of what each of two limits could be alone."""


def serving_limit_message(simulator: Simulator) -> str:
    """One line for limits on TPOT and TTFT that no strategy is known to keep: what each alone could be, what helps."""
    graph, cluster = simulator.graph, simulator.cluster
    exact, least, alone = ExactSearch(simulator), [], {}
    for measure in simulator.limits:
        assert measure.limit_s is not None
        fastest = exact.fastest_step(measure)
        if fastest is None:
            continue
        seconds, point = fastest
        d = simulator.points.degrees(point)
        name = measure.name.upper()
        where = f"pp={d.pp} dp={d.dp} tp={d.tp} ep={d.ep} etp={d.etp} batch={d.batch}"
        least.append(f"{name} {seconds / MS:.2f} ms at {where}")
        alone[measure.name] = max(seconds, measure.limit_s)
    limits = " and ".join(f"{m.name.upper()} <= {(m.limit_s or 0) / MS:g} ms" for m in simulator.limits)
    line = f"no strategy of {graph.model_name} on {cluster.name} meets {limits}; the fastest by itself is"
    helps = [*_looser(simulator, alone), *_changes(simulator)]
    ending = f"; what would help: {'; or '.join(helps)}" if helps else ""
    return f"{line} {'; '.join(least)}{ending}"


def _looser(simulator: Simulator, alone: Mapping[str, float]) -> Iterator[str]:
    """Limits that can be kept: the least of one, or of two together the first of ever looser multiples of the least."""
    options = []
    for factor in TOGETHER if len(alone) > 1 else (1.0,):
        ms = {name: looser_ms(factor * seconds) for name, seconds in alone.items()}
        text = " and ".join(f"{name.upper()} <= {limit:g} ms" for name, limit in ms.items())
        limits = replace(simulator.workload, tpot_ms=ms.get("tpot"), ttft_ms=ms.get("ttft"))
        options.append((text, changed(simulator, workload=limits)))
    if alone:
        yield from first_that_holds(options, _keeps_limits)


def _changes(simulator: Simulator) -> Iterator[str]:
    workload = simulator.workload
    if workload.concurrency is not None:
        free = changed(simulator, workload=replace(workload, concurrency=None))
        yield from first_that_holds([(f"leaving concurrency={workload.concurrency} open", free)], _keeps_limits)
    yield from what_helps(simulator, _keeps_limits, LIMIT_FACTORS)


def _keeps_limits(simulator: Simulator) -> bool:
    """Whether a strategy that keeps all limits is known: each by itself first, which is quick, then together."""
    if not simulator.any_fits:
        return False
    exact = ExactSearch(simulator)
    for measure in simulator.limits:
        fastest = exact.fastest_step(measure)
        if fastest is None or fastest[0] > (measure.limit_s or 0.0):
            return False
    return len(simulator.limits) == 1 or exact.run().point is not None
