"""Turns a solution into a plan."""

from collections.abc import Iterable
from importlib.metadata import version
from typing import Any, cast

import numpy as np

from autoshard.api.dealing import Dealt, as_solved, others
from autoshard.api.solve import Solution
from autoshard.plan import (
    Alternative,
    ClusterIdentity,
    MemoryBytes,
    ModelIdentity,
    PlanData,
    Predicted,
    PredictedTerm,
    SearchRecord,
    mesh_layout,
    planned_handovers,
    planned_holders,
    planned_ops,
    planned_padding,
    planned_parameters,
    stages,
)
from autoshard.simulator import Simulator, terms
from autoshard.simulator.memory import WORKSPACE_BYTES
from autoshard.simulator.points import LARGEST_SEQUENCES
from autoshard.units import GIB, MS


def predict(simulator: Simulator, point: int, dims: tuple[int, ...]) -> Predicted:
    """The prediction of one strategy, opened into terms."""
    e = simulator.evaluate(np.array([point]), np.array([dims], dtype=np.int64))
    d = simulator.points.degrees(point)
    rate = float(simulator.throughput(np.array([point]), e.step_s)[0])
    step = float(e.step_s[0])
    tpot, ttft = latencies(simulator, point, dims, step)
    weights, kv, activations = float(e.weights_bytes[0]), float(e.kv_bytes[0]), float(e.activation_bytes[0])
    return Predicted(
        tokens_per_s=rate,
        tokens_per_s_per_gpu=rate / simulator.cluster.num_devices,
        tokens_per_s_per_used_gpu=rate / (d.num_devices * d.replicas),
        tokens_per_s_per_user=None if tpot is None else 1.0 / tpot,
        tpot_s=tpot,
        ttft_s=ttft,
        step_s=step,
        memory_bytes=MemoryBytes(
            weights=weights,
            kv=kv,
            activations=activations,
            workspace=WORKSPACE_BYTES,
            total=weights + kv + activations + WORKSPACE_BYTES,
        ),
        two_batch=None if simulator.effects is None else simulator.effects.is_two_batch(point, dims),
        terms=tuple(
            PredictedTerm(part=t.part, label=t.label, what=t.what, seconds=t.seconds)
            for t in terms(simulator, point, dims)
        ),
    )


def latencies(
    simulator: Simulator, point: int, dims: tuple[int, ...], step_s: float
) -> tuple[float | None, float | None]:
    """TPOT and TTFT in seconds, each None where the phase has none."""
    if simulator.workload.phase != "serve":
        return (step_s, None) if simulator.workload.phase == "decode" else (None, step_s)
    at, options = np.array([point]), np.array([dims], dtype=np.int64)
    found = {m.name: float(simulator.measure_s(m, at, options)[0]) for m in simulator.limited}
    return found["tpot"], found["ttft"]


def over_limits(
    simulator: Simulator, point: int, dims: tuple[int, ...], step_s: float
) -> list[tuple[str, float, float]]:
    """Limits that a strategy breaks: name, seconds, limit in seconds."""
    tpot, ttft = latencies(simulator, point, dims, step_s)
    pairs = (("TPOT", tpot, simulator.workload.tpot_s), ("TTFT", ttft, simulator.workload.ttft_s))
    return [(name, s, limit) for name, s, limit in pairs if s is not None and limit is not None and s > limit]


def binding(simulator: Simulator, point: int, dims: tuple[int, ...]) -> tuple[str, ...]:
    """What keeps the plan from a larger batch at its degrees: memory, the limit, or neither."""
    p = simulator.points
    same = (p.pp == p.pp[point]) & (p.tp == p.tp[point]) & (p.dp == p.dp[point]) & (p.ep == p.ep[point])
    larger = np.flatnonzero(same & (p.sequences > p.sequences[point]))
    found = []
    capacity = simulator.capacity_bytes
    if not len(larger):
        now = simulator.evaluate(np.array([point]), np.array([dims], dtype=np.int64))
        total = float(now.weights_bytes[0] + now.kv_bytes[0] + now.activation_bytes[0]) + WORKSPACE_BYTES
        if "batch" in simulator.fixed:
            return (f"batch is fixed at {simulator.fixed['batch']}",)
        if simulator.workload.concurrency is not None:
            return (f"the requests in flight are fixed at {simulator.workload.concurrency}",)
        if p.sequences[point] >= LARGEST_SEQUENCES:
            return (f"batch: more than {p.sequences[point]:,} sequences a microbatch and dp rank are not searched",)
        return (f"memory: {total / GIB:.1f} of {capacity / GIB:.1f} GiB; no larger batch of the grid fits",)
    following = int(larger[p.sequences[larger].argmin()])
    e = simulator.evaluate(np.array([following]), np.array([dims], dtype=np.int64))
    total = float(e.weights_bytes[0] + e.kv_bytes[0] + e.activation_bytes[0]) + WORKSPACE_BYTES
    batch = int(p.batch[following])
    if total > capacity:
        found.append(f"memory: batch {batch} would need {total / GIB:.1f} of {capacity / GIB:.1f} GiB")
    for name, seconds, limit in over_limits(simulator, following, dims, float(e.step_s[0])):
        found.append(f"{name}: batch {batch} would take {seconds / MS:.2f} ms, limit {limit / MS:g} ms")
    return tuple(found) or ("neither memory nor a limit: a larger batch gains nothing here",)


def alternatives(rest: Iterable[Dealt], own: float) -> tuple[Alternative, ...]:
    """Other degrees as they were dealt, relative to the plan's ``own`` rate."""
    found: list[Alternative] = []
    for dealt in rest:
        e = dealt.simulator.evaluate(np.array([dealt.point]), np.array([dealt.dims], dtype=np.int64))
        rate = float(e.tokens_per_s[0]) / dealt.simulator.cluster.num_devices
        degrees = degrees_dict(dealt.simulator.points.degrees(dealt.point))
        found.append(Alternative(degrees=degrees, tokens_per_s_per_gpu=rate, relative=rate / own))
    return tuple(found)


def term_seconds(terms: Iterable[PredictedTerm]) -> dict[str, float]:
    """Seconds by ``"<part>/<op or tensor> <kind>"``; they sum to the step."""
    found: dict[str, float] = {}
    for t in terms:
        label = f"{t.part}/{t.label} {t.what}"
        found[label] = found.get(label, 0.0) + t.seconds
    return found


def degrees_dict(d: Any) -> dict[str, int]:
    """Degrees by name."""
    return {n: getattr(d, n) for n in ("pp", "dp", "tp", "ep", "etp", "batch", "replicas")}


def num_strategies(simulator: Simulator) -> float:
    """Legal strategies over all degree points (choices by their own legality; an upper bound under memory)."""
    total = np.ones(len(simulator.points))
    for v in simulator.variables:
        total *= v.legal.sum(1)
    return float(total.sum())


def build_plan(
    solution: Solution,
    source: dict[str, Any] | None,
    dealt: Dealt | None = None,
    rest: Iterable[Dealt] | None = None,
) -> PlanData:
    """The plan of a solution; ``source`` says how to build the model again (None for a live module).

    ``dealt`` is the solution with other stages than it was searched with, ``rest`` are other degrees to name (without
    them the best ones, on even stages).
    """
    sim, own = solution.simulator, dealt or as_solved(solution)
    graph, cluster = sim.graph, sim.cluster
    strategy = own.simulator.strategy(own.point, own.dims)
    predicted = predict(own.simulator, own.point, own.dims)
    rate = predicted.tokens_per_s_per_gpu
    return PlanData(
        versions={
            "autoshard": version("autoshard"),
            "torch": version("torch"),
            "transformers": version("transformers"),
        },
        model=ModelIdentity(
            name=graph.model_name,
            class_name=graph.model_class,
            parameters=graph.num_parameters,
            active_parameters=graph.num_active_parameters,
            structural_hash=graph.structural_hash(),
            source=source,
        ),
        cluster=ClusterIdentity(
            name=cluster.name,
            device=cluster.device.name,
            num_devices=cluster.num_devices,
            devices_per_node=cluster.devices_per_node,
            memory_bytes=cluster.device.memory_bytes,
        ),
        workload=sim.workload,
        strategy=strategy,
        mesh=mesh_layout(graph, strategy),
        stages=stages(graph, strategy),
        handovers=planned_handovers(graph, strategy, sim.workload),
        ops=planned_ops(graph, strategy, sim.workload),
        parameters=planned_parameters(graph, strategy),
        padding=planned_padding(graph, strategy),
        held_by=planned_holders(graph, strategy),
        predicted=predicted,
        binding=binding(own.simulator, own.point, own.dims),
        search=SearchRecord(
            algorithm=solution.algorithm,
            seed=solution.seed,
            budget=solution.budget,
            calls=solution.calls,
            found_tokens_per_s_per_gpu=solution.found,
            exact_tokens_per_s_per_gpu=solution.exact_rate,
            regret_to_exact=solution.regret(rate),
            rl_regret=solution.regret(solution.found) if solution.algorithm == "rl" else None,
            exact_is_bound=solution.is_bound,
            taken_from=cast(Any, solution.taken_from),
            balanced_gain=own.gain,
            num_points=len(sim.points),
            num_strategies=f"{num_strategies(sim):.3g}",
        ),
        alternatives=alternatives([o for _, o in others(solution, even=True)] if rest is None else rest, rate),
        graph=graph,
    )
