"""Why a plan is as it is: what its step is made of, what binds, what other choices would cost, and two plans apart.

Everything is computed anew from the plan's graph, cluster and workload with the degrees held, so that the answer is
this version's; where it differs from what the file predicts, both are given.

Each alternative of an op is priced with all *other* choices re-optimised at the same degrees and batch
(`ExactSearch.option_values`), so ``relative`` is what the choice itself costs and not what a bad neighbour makes of it.
Limits on the step are left aside there: at a held batch a slower choice may miss them, which its cost says anyway.
Where the workload has effects nothing is re-optimised: the other choices are held.
"""

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from autoshard.api.build_plan import binding, degrees_dict, predict, term_seconds
from autoshard.api.candidates import KEYS
from autoshard.api.dealing import Dealt, balance
from autoshard.api.describe import legal_choices
from autoshard.api.plan_cluster import cluster_of
from autoshard.errors import InvalidInputError
from autoshard.hardware import Cluster
from autoshard.plan import PlanData, PredictedTerm
from autoshard.search.exact import ExactSearch
from autoshard.search.relaxed import certify
from autoshard.sharding import Degrees
from autoshard.sharding.wider import wider_parts
from autoshard.simulator import Simulator
from autoshard.simulator.edges import edges
from autoshard.workload import Workload

NUM_TERMS = 12
"""Terms of a difference that are listed one by one."""


def explain(plan: PlanData, *, cluster: Cluster | None = None, alternative: int = 1) -> dict[str, Any]:
    """Explain one plan; ``alternative`` is the number of the other degrees that ``next_best`` opens.

    ``terms`` maps ``"<part>/<op> <kind>"`` to seconds and sums to ``step_s``; ``kinds`` sums them by kind. ``choices``
    maps every op with a choice to what is taken and, per option, the best rate with it held relative to the best rate
    at these degrees (None and a reason where it is not possible). ``collectives`` has the algorithm of every edge.
    ``next_best`` opens other degrees (by default the best) into the terms that differ most, in seconds of a step for
    the same number of tokens.

    Raises:
        PlanMismatchError: when the cluster is not the one planned for.
        InvalidInputError: when the plan's cluster is not known by name and none is given, or for an alternative that it
            does not have.
    """
    if not 1 <= alternative <= max(len(plan.alternatives), 1):
        raise InvalidInputError(f"alternative {alternative}: the plan has {len(plan.alternatives)}, counted from 1")
    where = cluster_of(plan, cluster)
    simulator, dims = _at(plan, where, plan.degrees, dict(plan.strategy.choices))
    predicted = predict(simulator, 0, dims)
    terms = term_seconds(predicted.terms)
    return {
        "model": plan.model.name,
        "cluster": where.name,
        "degrees": degrees_dict(plan.degrees),
        "predicted": predicted.model_dump(mode="json", exclude={"terms"}),
        "saved_tokens_per_s_per_gpu": plan.predicted.tokens_per_s_per_gpu,
        "terms": terms,
        "kinds": _kinds(predicted.terms),
        "binding": list(_binding(plan, where)),
        "choices": _choices(plan, simulator, dims),
        "collectives": [asdict(edge) for edge in edges(simulator, 0, dims)],
        "next_best": _next_best(plan, where, alternative, predicted.tokens_per_s_per_gpu, predicted.terms),
    }


def difference(first: PlanData, second: PlanData) -> dict[str, Any]:
    """Two plans apart: ``[first, second]`` of what differs, and the terms of a step by how much they moved.

    Numbers are those of the files. Seconds are of one step of each plan, whose numbers of tokens may differ: the rates
    say which is better.
    """

    def rows(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, list[Any]]:
        keys = dict.fromkeys([*a, *b])
        return {k: [a.get(k), b.get(k)] for k in keys if a.get(k) != b.get(k) or (k in a) != (k in b)}

    workload = [{n: getattr(p.workload, n) for n in p.workload.__dataclass_fields__} for p in (first, second)]
    terms = [term_seconds(p.predicted.terms) for p in (first, second)]
    both = {k: (terms[0].get(k, 0.0), terms[1].get(k, 0.0)) for k in dict.fromkeys([*terms[0], *terms[1]])}
    moved = sorted((t for t in both.items() if t[1][0] != t[1][1]), key=lambda t: -abs(t[1][1] - t[1][0]))
    rates = [p.predicted.tokens_per_s_per_gpu for p in (first, second)]
    return {
        "same_model": first.model.structural_hash == second.model.structural_hash,
        "models": [first.model.name, second.model.name],
        "clusters": [first.cluster.name, second.cluster.name],
        "workload": rows(workload[0], workload[1]),
        "degrees": rows(degrees_dict(first.degrees), degrees_dict(second.degrees)),
        "stages": [] if first.stages == second.stages else [list(first.stages), list(second.stages)],
        "choices": rows(dict(first.strategy.choices), dict(second.strategy.choices)),
        "tokens_per_s_per_gpu": rates,
        "relative": rates[1] / rates[0] if rates[0] else None,
        "step_s": [p.predicted.step_s for p in (first, second)],
        "memory_bytes": rows(*(p.predicted.memory_bytes.model_dump() for p in (first, second))),
        "terms": [{"term": k, "seconds": list(seconds)} for k, seconds in moved],
    }


def _simulator(
    plan: PlanData, cluster: Cluster, workload: Workload, fixed: dict[str, int], stages: tuple[int, ...]
) -> Simulator:
    """A simulator of a plan's model in the space that the plan was found in."""
    return Simulator(
        plan.graph,
        cluster,
        workload,
        fixed=fixed,
        stages=stages,
        uneven=plan.strategy.uneven,
        wider=wider_parts(plan.graph, plan.strategy),
    )


def _at(
    plan: PlanData, cluster: Cluster, degrees: Degrees, choices: Mapping[str, Any]
) -> tuple[Simulator, tuple[int, ...]]:
    """A simulator of one degree point, all choices free, and the options that ``choices`` are."""
    simulator = _simulator(plan, cluster, plan.workload, degrees_dict(degrees), plan.strategy.stages)
    assert len(simulator.points) == 1, f"{degrees} is {len(simulator.points)} points"
    return simulator, tuple(v.choices.index(choices.get(v.key)) for v in simulator.variables)


def _binding(plan: PlanData, cluster: Cluster) -> tuple[str, ...]:
    """What binds, with the batch free."""
    d = plan.degrees
    fixed = {n: getattr(d, n) for n in KEYS}
    simulator = _simulator(plan, cluster, plan.workload, fixed, plan.strategy.stages)
    points = np.flatnonzero(simulator.points.batch == d.batch)
    if not len(points):  # a batch that was asked for and is not on the grid
        return plan.binding
    point = int(points[0])
    dims = tuple(v.choices.index(plan.strategy.choice(v.key)) for v in simulator.variables)
    return binding(simulator, point, dims)


def _choices(plan: PlanData, simulator: Simulator, dims: tuple[int, ...]) -> dict[str, dict[str, Any]]:
    """Per op: the choice taken and the best rate with each, relative to the best of all at these degrees."""
    free = replace(plan.workload, ttft_ms=None, tpot_ms=None)
    unlimited = _simulator(plan, simulator.cluster, free, degrees_dict(plan.degrees), plan.strategy.stages)
    additive = unlimited.effects is None
    values = ExactSearch(unlimited).option_values(0) if additive else _swapped(unlimited, dims)
    best = max((v for options in values for v in options if v is not None), default=None)
    excluded = {
        key: {e["choice"]: e["reason"] for e in op["excluded"]}
        for key, op in legal_choices(plan.graph, plan.strategy).items()
    }
    found: dict[str, dict[str, Any]] = {}
    for variable, taken, options in zip(simulator.variables, dims, values, strict=True):
        listed: list[dict[str, Any]] = []
        for choice, value in zip(variable.choices, options, strict=True):
            one: dict[str, Any] = {"choice": choice, "relative": None if value is None or not best else value / best}
            if value is None:
                reason = excluded.get(variable.key, {}).get(choice)
                one["reason"] = reason or "does not fit in memory" + (
                    ", the other choices held" if plan.workload.effects else ""
                )
            listed.append(one)
        found[variable.key] = {"taken": variable.choices[taken], "options": listed}
    return found


def _swapped(simulator: Simulator, dims: tuple[int, ...]) -> tuple[tuple[float | None, ...], ...]:
    """Throughput (tokens/s) at the one point with each option of each variable, the other choices held."""
    found = []
    for v, variable in enumerate(simulator.variables):
        rows = np.array([dims] * len(variable.choices), dtype=np.int64)
        rows[:, v] = np.arange(len(rows))
        rates = simulator.evaluate(np.zeros(len(rows), dtype=np.int64), rows).tokens_per_s
        found.append(tuple(float(rate) if rate > 0 else None for rate in rates))
    return tuple(found)


def _next_best(
    plan: PlanData, cluster: Cluster, number: int, rate: float, terms: tuple[PredictedTerm, ...]
) -> dict[str, Any] | None:
    """Other degrees at their best choices, on the stages that the plan dealt them, and where the time goes instead."""
    if not plan.alternatives:
        return None
    named = plan.alternatives[number - 1]
    degrees = Degrees(**named.degrees)
    simulator = _simulator(plan, cluster, plan.workload, degrees_dict(degrees), ())
    found = certify(simulator).dims
    if found is None:
        return None
    even = Dealt(simulator=simulator, point=0, dims=found, gain=None)
    both = [predict(d.simulator, d.point, d.dims) for d in (even, balance(even))]
    predicted = min(both, key=lambda p: abs(p.tokens_per_s_per_gpu - named.tokens_per_s_per_gpu))
    # Steps of different batches are compared per token in flight of the whole cluster.
    own, other = (d.batch * d.replicas for d in (plan.degrees, degrees))
    before, after = _kinds(terms), _kinds(predicted.terms)
    kinds = dict.fromkeys([*before, *after])
    moved = {k: [before.get(k, 0.0) / own, after.get(k, 0.0) / other] for k in kinds}
    return {
        "degrees": degrees_dict(degrees),
        "choices": {v.key: v.choices[o] for v, o in zip(simulator.variables, found, strict=True)},
        "tokens_per_s_per_gpu": predicted.tokens_per_s_per_gpu,
        "relative": predicted.tokens_per_s_per_gpu / rate,
        "step_s": predicted.step_s,
        "kinds_s_per_sequence": dict(sorted(moved.items(), key=lambda k: -abs(k[1][1] - k[1][0]))[:NUM_TERMS]),
    }


def _kinds(terms: tuple[PredictedTerm, ...]) -> dict[str, float]:
    """Seconds by kind of op or collective, largest first."""
    found: dict[str, float] = {}
    for t in terms:
        found[t.what] = found.get(t.what, 0.0) + t.seconds
    return dict(sorted(found.items(), key=lambda k: -k[1]))
