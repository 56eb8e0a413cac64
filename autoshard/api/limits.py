"""Why no plan keeps the limits of mixed serving, and what would help."""

from collections.abc import Iterator
from dataclasses import replace

from autoshard.api.relax import LIMIT_FACTORS, changed, first_that_holds, looser_ms, what_helps
from autoshard.search.exact import ExactSearch
from autoshard.simulator import Simulator
from autoshard.units import MS


def serving_limit_message(simulator: Simulator) -> str:
    """One line for limits on TPOT and TTFT that no strategy is known to keep: what each alone could be, what helps."""
    graph, cluster = simulator.graph, simulator.cluster
    exact, least, looser = ExactSearch(simulator), [], []
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
        if seconds > measure.limit_s:
            looser.append(f"{name} <= {looser_ms(seconds):g} ms")
    limits = " and ".join(f"{m.name.upper()} <= {(m.limit_s or 0) / MS:g} ms" for m in simulator.limits)
    line = f"no strategy of {graph.model_name} on {cluster.name} meets {limits}; the fastest by itself is"
    helps = [*([" and ".join(looser)] if len(simulator.limits) == 1 else []), *_changes(simulator)]
    ending = f"; what would help: {'; or '.join(helps)}" if helps else ""
    return f"{line} {'; '.join(least)}{ending}"


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
