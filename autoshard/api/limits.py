"""Why no plan keeps the limits of mixed serving."""

from autoshard.search.exact import ExactSearch
from autoshard.simulator import Simulator
from autoshard.units import MS


def serving_limit_message(simulator: Simulator) -> str:
    """One line for limits on TPOT and TTFT that no strategy is known to keep: what each alone could be."""
    graph, cluster = simulator.graph, simulator.cluster
    exact, least = ExactSearch(simulator), []
    for measure in simulator.limits:
        assert measure.limit_s is not None
        fastest = exact.fastest_step(measure)
        if fastest is None:
            continue
        seconds, point = fastest
        d = simulator.points.degrees(point)
        where = f"pp={d.pp} dp={d.dp} tp={d.tp} ep={d.ep} etp={d.etp} batch={d.batch}"
        least.append(f"{measure.name.upper()} {seconds / MS:.2f} ms at {where}")
    limits = " and ".join(f"{m.name.upper()} <= {(m.limit_s or 0) / MS:g} ms" for m in simulator.limits)
    return (
        f"no strategy of {graph.model_name} on {cluster.name} meets {limits}; the fastest by itself is"
        f" {'; '.join(least)}"
    )
