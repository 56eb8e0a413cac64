"""What is asked at a point besides running searches: the collective alone varied, and where joint search gains."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from autoshard.api.build_plan import degrees_dict
from autoshard.api.pins import pins_for
from autoshard.api.solve import make_simulator, run_search
from autoshard.errors import AutoshardError, NoFeasiblePlanError
from autoshard.search.exact import ExactSearch
from autoshard.sharding.strategy import DISPATCH, RESIDUAL
from autoshard.simulator import Simulator
from autoshard.simulator.terms import terms
from benchmarks.paper.points import BUDGET

SECOND_MATRIX = "experts_down"
FORMS = {"all_reduce": 1, "all_gather": 0}


ARRANGEMENTS: tuple[dict[str, int], ...] = ({"dp": 1, "ep": 1, "tp": 8}, {"dp": 1, "ep": 1, "tp": 16})
"""Besides the optimum's degrees: a stage in one node, and in two, whose experts are split as the paper's are."""


def collectives(simulator: Simulator) -> Iterator[dict[str, Any]]:
    """Degrees held, and only the collective behind the experts varied: a line per arrangement and form.

    The second expert matrix is held at 1 (partial sums, added up) and at 0 (outputs sharded, gathered before it and
    behind it); every other choice is free in both. Degrees are the optimum's, and the best of each of `ARRANGEMENTS`.
    ``forgotten`` is the rate of the same strategy without what follows the second matrix: where the experts are on one
    axis alone (dp = ep = 1) just the second gather, else its sums too.
    """
    best = ExactSearch(simulator).run()
    assert best.point is not None
    everywhere = degrees_dict(simulator.points.degrees(best.point))
    for fixed in (everywhere, *ARRANGEMENTS):
        try:
            degrees = fixed if fixed is everywhere else _best_degrees(_held(simulator, fixed))
            lines = [_form(_held(simulator, degrees, choice), name) for name, choice in FORMS.items()]
        except AutoshardError:  # illegal, or nothing fits: there is no such form
            continue
        yield from ({**line, "degrees": degrees} for line in lines)


def _held(simulator: Simulator, degrees: dict[str, int], choice: int | None = None) -> Simulator:
    pins = {} if choice is None else pins_for(simulator.graph, {SECOND_MATRIX: choice})
    return make_simulator(simulator.graph, simulator.cluster, simulator.workload, fixed=degrees, pinned=pins)


def _best_degrees(simulator: Simulator) -> dict[str, int]:
    point = ExactSearch(simulator).run().point
    if point is None:
        raise NoFeasiblePlanError("nothing keeps the limits")
    return degrees_dict(simulator.points.degrees(point))


def _form(simulator: Simulator, name: str) -> dict[str, Any]:
    found = ExactSearch(simulator).run()
    if found.point is None or found.dims is None:
        raise NoFeasiblePlanError("nothing keeps the limits")
    each = terms(simulator, found.point, found.dims)
    behind = sum(t.seconds for t in each if t.label == SECOND_MATRIX and t.what == "collective")
    whole = sum(t.seconds for t in each)
    rate = found.tokens_per_s / simulator.cluster.num_devices
    return {"form": name, "rate": rate, "forgotten": rate * whole / (whole - behind)}


def gain(simulator: Simulator) -> dict[str, Any]:
    """Where the optimum gains over Megatron's choices at their best degrees.

    ``free_choices`` is the best rate at Megatron's degrees with free choices: the first part of the gain is due to the
    choices, the rest to degrees that only pay with them. ``seconds`` are of a step, by kind, of both; ``differs`` are
    the choices (optimum, Megatron's).
    """
    num = simulator.cluster.num_devices
    search = ExactSearch(simulator)
    best = search.run()
    problem, result = run_search(simulator, "megatron", budget=BUDGET, seed=0)
    if best.point is None or best.dims is None or result.best is None:
        return {}
    point = int(problem.points_of(np.array([result.best], dtype=np.int64))[0])
    dims = tuple(int(o) for o in result.best[problem.num_degree_components :])
    free = search.best_at(point)
    assert free is not None
    own, other = simulator.strategy(best.point, best.dims), simulator.strategy(point, dims)
    theirs = dict(other.choices)
    return {
        "optimum": best.tokens_per_s / num,
        "megatron": result.throughput,
        "free_choices": free[0] / num,
        "degrees": degrees_dict(own.degrees),
        "megatron_degrees": degrees_dict(other.degrees),
        "differs": {k: [c, theirs[k]] for k, c in own.choices if c != theirs[k]},
        "layout": {k.partition("/")[2]: c for k, c in own.choices if k in (RESIDUAL, DISPATCH)},
        "seconds": [_by_kind(simulator, best.point, best.dims), _by_kind(simulator, point, dims)],
    }


def _by_kind(simulator: Simulator, point: int, dims: tuple[int, ...]) -> dict[str, float]:
    found: dict[str, float] = {"compute": 0.0, "collective": 0.0, "send_recv": 0.0}
    for term in terms(simulator, point, dims):
        found[term.what if term.what in found else "compute"] += term.seconds
    return found
