"""One strategy, every term of its time and memory."""

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from autoshard.api.build_plan import degrees_dict, predict, term_seconds
from autoshard.errors import InvalidInputError
from autoshard.hardware import Cluster
from autoshard.ir import OpGraph
from autoshard.plan import Predicted
from autoshard.sharding import DISPATCH, RESIDUAL, Choice, Degrees, Strategy, degree_reasons, strategy_reasons
from autoshard.sharding.legality import expert_counts
from autoshard.sharding.patterns import pattern_strategy
from autoshard.sharding.placements import paddings
from autoshard.simulator import Simulator
from autoshard.simulator.edges import edges
from autoshard.units import GIB, MS
from autoshard.workload import Workload


def complete_degrees(
    graph: OpGraph, fixed: Mapping[str, int], num_devices: int | None = None, *, uneven: bool = False
) -> Degrees:
    """Degrees from those given: what is not given follows from the others or is 1.

    dp*tp = ep*etp decides one of the four; a dense model has ep = dp. The batch is one sequence per dp rank and stage,
    and replicas fill ``num_devices``.

    Raises:
        InvalidInputError: for degrees that do not fit together, break a rule of the model, or need more devices.
    """
    pp, given = fixed.get("pp", 1), dict(fixed)
    dp, tp = given.get("dp", 1), given.get("tp")
    if not expert_counts(graph):
        tp = tp or 1
        ep = given.get("ep", dp)
    else:
        if tp is None:
            group = max(given.get("ep", 1) * given.get("etp", 1), dp)
            tp = group // dp if group % dp == 0 else 1
        ep = given.get("ep", _quotient(dp * tp, given.get("etp", dp * tp)))
    etp = given.get("etp", _quotient(dp * tp, ep))
    if dp * tp == ep * etp:
        reasons = degree_reasons(graph, pp=pp, dp=dp, tp=tp, ep=ep, uneven=uneven)
        if reasons:
            raise InvalidInputError("; ".join(r.message for r in reasons))
    degrees = Degrees(pp=pp, dp=dp, tp=tp, ep=ep, etp=etp, batch=given.get("batch", dp * pp))
    if num_devices is None:
        return degrees
    replicas = given.get("replicas", max(num_devices // degrees.num_devices, 1))
    if degrees.num_devices * replicas > num_devices:
        raise InvalidInputError(
            f"pp={pp} dp={dp} tp={tp} replicas={replicas} needs {degrees.num_devices * replicas} devices; the cluster"
            f" has {num_devices}"
        )
    return Degrees(pp=pp, dp=dp, tp=tp, ep=ep, etp=etp, batch=degrees.batch, replicas=replicas)


def _quotient(whole: int, part: int) -> int:
    return whole // part if whole % part == 0 else 1


def complete_strategy(
    graph: OpGraph, degrees: Degrees, pinned: Mapping[str, Choice], *, uneven: bool = False
) -> Strategy:
    """Megatron's choices at the degrees, but for the pinned ones.

    Raises:
        InvalidInputError: for a pinned choice that the degrees do not offer.
    """
    residual, dispatch = pinned.get(RESIDUAL), pinned.get(DISPATCH)
    base = pattern_strategy(graph, degrees, "megatron", residual=residual, dispatch=dispatch, uneven=uneven)
    chosen = {**dict(base.choices), **pinned}
    strategy = Strategy(degrees=degrees, choices=tuple(chosen.items()), uneven=uneven)
    reasons = strategy_reasons(graph, strategy)
    if reasons:
        raise InvalidInputError("; ".join(r.message for r in reasons))
    return strategy


def simulate(
    graph: OpGraph,
    cluster: Cluster,
    workload: Workload,
    *,
    fixed: Mapping[str, int],
    pinned: Mapping[str, Choice],
    uneven: bool = False,
    wider: tuple[str, ...] = (),
) -> dict[str, Any]:
    """Predict one strategy, feasible or not.

    ``terms`` maps ``"<part>/<op or tensor> <kind>"`` to seconds of the step and sums to ``predicted["step_s"]``.

    Raises:
        InvalidInputError: for a strategy that no rule allows.
    """
    degrees = complete_degrees(graph, fixed, cluster.num_devices, uneven=uneven)
    strategy = complete_strategy(graph, degrees, pinned, uneven=uneven)
    choices = dict(strategy.choices)
    held = degrees_dict(degrees)
    if workload.concurrency is not None:
        held.pop("batch")
    simulator = Simulator(graph, cluster, workload, fixed=held, pinned=choices, uneven=uneven, wider=wider)
    assert len(simulator.points) == 1, f"{degrees} is {len(simulator.points)} points"
    dims = tuple(v.choices.index(strategy.choice(v.key)) for v in simulator.variables)
    predicted = predict(simulator, 0, dims)
    reasons = _reasons(simulator, predicted)
    evaluation = simulator.evaluate(np.zeros(1, dtype=np.int64), np.array([dims], dtype=np.int64))
    assert bool(evaluation.violation[0] == 0) == (not reasons), "the reasons are not the simulator's"
    terms = term_seconds(predicted.terms)
    assert math.isclose(sum(terms.values()), predicted.step_s, rel_tol=1e-9), "terms do not sum to the step"
    return {
        "model": graph.model_name,
        "cluster": cluster.name,
        "workload": {n: getattr(workload, n) for n in workload.__dataclass_fields__},
        "degrees": degrees_dict(simulator.points.degrees(0)),
        "choices": choices,
        "padding": {key: [d.to_dict() for d in dims_] for key, dims_ in paddings(graph, strategy).items()},
        "feasible": not reasons,
        "reasons": reasons,
        "predicted": predicted.model_dump(mode="json", exclude={"terms"}),
        "capacity_bytes": simulator.capacity_bytes,
        "terms": terms,
        "collectives": [asdict(edge) for edge in edges(simulator, 0, dims)],
    }


def _reasons(simulator: Simulator, predicted: Predicted) -> list[str]:
    found = []
    total, capacity = predicted.memory_bytes.total, simulator.capacity_bytes
    if total > capacity:
        found.append(f"memory: needs {total / GIB:.1f} of {capacity / GIB:.1f} GiB a device")
    pairs = (
        ("TPOT", predicted.tpot_s, simulator.workload.tpot_s),
        ("TTFT", predicted.ttft_s, simulator.workload.ttft_s),
    )
    for name, seconds, limit in pairs:
        if seconds is not None and limit is not None and seconds > limit:
            found.append(f"{name}: {seconds / MS:.2f} ms, limit {limit / MS:g} ms")
    return found
