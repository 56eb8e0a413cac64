"""Questions beyond one plan: throughput against speed for a user, and the fewest devices for a rate."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from autoshard.api.build_plan import degrees_dict, predict
from autoshard.api.relax import memory_message
from autoshard.api.solve import make_simulator, no_plan_message
from autoshard.errors import InvalidInputError, NoFeasiblePlanError
from autoshard.hardware import Cluster
from autoshard.ir import OpGraph
from autoshard.search.exact import ExactResult, ExactSearch
from autoshard.sharding import Choice
from autoshard.simulator import Simulator
from autoshard.workload import Workload

LARGEST_RATE = 1e12
"""Tokens/s that may be asked for: beyond all there are."""


def frontier(
    graph: OpGraph,
    cluster: Cluster,
    workload: Workload,
    *,
    fixed: Mapping[str, int] | None = None,
    pinned: Mapping[str, Choice] | None = None,
) -> dict[str, Any]:
    """Degrees and batches that no other beats in both tokens/s/GPU and tokens/s/user, most tokens/s/GPU first.

    Every degree point enters with the choices that are fastest there (in serving: for a request as a whole); points
    where those do not fit in memory only as far as the exact search opened them.

    Raises:
        InvalidInputError: in phase prefill, which has no tokens a user.
        NoFeasiblePlanError: when nothing fits or keeps the limits.
    """
    if workload.phase == "prefill":
        raise InvalidInputError("a frontier of tokens/s/GPU against tokens/s/user needs phase decode or serve")
    simulator = make_simulator(graph, cluster, workload, fixed=fixed, pinned=pinned)
    exact = ExactSearch(simulator).run(everywhere=True)
    if not exact.dims_of:
        raise NoFeasiblePlanError(no_plan_message(simulator))
    point = np.array(list(exact.dims_of), dtype=np.int64)
    dims = np.array(list(exact.dims_of.values()), dtype=np.int64)
    tpot_s = simulator.measure_s(simulator.limited[0] if simulator.limited else simulator.objective, point, dims)
    rate = exact.values[point] / cluster.num_devices
    order = np.lexsort((tpot_s, -rate))
    found, fastest = [], np.inf
    for i in order:
        if tpot_s[i] < fastest * (1.0 - 1e-12):
            fastest = float(tpot_s[i])
            predicted = predict(simulator, int(point[i]), tuple(int(o) for o in dims[i]))
            found.append(
                {
                    "tokens_per_s_per_gpu": predicted.tokens_per_s_per_gpu,
                    "tokens_per_s_per_user": predicted.tokens_per_s_per_user,
                    "tpot_s": predicted.tpot_s,
                    "ttft_s": predicted.ttft_s,
                    "degrees": degrees_dict(simulator.points.degrees(int(point[i]))),
                }
            )
    return {"model": graph.model_name, "cluster": cluster.name, "frontier": found}


def check_rate(rate: float) -> None:
    """Raise InvalidInputError for a rate that no cluster is asked for."""
    if not 0 < rate <= LARGEST_RATE:
        raise InvalidInputError(f"rate={rate:g} must be a positive number of tokens/s, {LARGEST_RATE:g} at most")


def smallest_cluster(
    graph: OpGraph,
    device: Cluster,
    workload: Workload,
    rate: float,
    *,
    pinned: Mapping[str, Choice] | None = None,
    largest_replica: int = 64,
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Fewest devices that reach ``rate`` tokens/s within the limits of a workload, as equal replicas.

    The best replica of every size (1 to a node, then whole nodes, up to ``largest_replica`` devices) is found exactly;
    of those, ``size * ceil(rate / its rate)`` is least. Sizes that could not win any more are left out.

    Args:
        graph: The model.
        device: A cluster of the devices; its number of devices is not looked at.
        workload: What is served. Its ``concurrency`` must be open.
        rate: Tokens/s (made tokens in decode and serve, prompt tokens in prefill).
        pinned: Choices that are held.
        largest_replica: Devices of the largest replica tried.
        progress: Is told every size.

    Raises:
        InvalidInputError: for a rate that is not positive, or a fixed concurrency.
        NoFeasiblePlanError: when no replica fits or keeps the limits.
    """
    check_rate(rate)
    if workload.concurrency is not None:
        raise InvalidInputError(f"concurrency={workload.concurrency} and a rate exclude each other: leave one open")
    node = device.devices_per_node
    sizes = [*range(1, min(node, largest_replica) + 1), *range(2 * node, largest_replica + 1, node)]
    tried: list[dict[str, Any]] = []
    best: tuple[int, int, Simulator, ExactResult] | None = None
    failed: Simulator | None = None
    for size in sizes:
        if best is not None and size >= best[0]:
            break
        progress(f"replicas of {size}")
        where = replace(device, num_devices=size, name=f"{device.device.name}x{size}")
        simulator = failed = Simulator(graph, where, workload, fixed={"replicas": 1}, pinned=pinned)
        if not simulator.any_fits:
            continue
        exact = ExactSearch(simulator).run()
        if exact.point is None:
            continue
        used = int(simulator.points.pp[exact.point] * simulator.points.group[exact.point])
        replicas = math.ceil(rate / exact.tokens_per_s * (1.0 - 1e-12))
        tried.append({"gpus_per_replica": used, "tokens_per_s": exact.tokens_per_s, "gpus": used * replicas})
        if best is None or used * replicas < best[0]:
            best = (used * replicas, replicas, simulator, exact)
    if best is None:
        assert failed is not None
        why = no_plan_message(failed) if failed.any_fits else memory_message(failed)
        raise NoFeasiblePlanError(f"no replica of up to {sizes[-1]} devices will do: {why}")
    gpus, replicas, simulator, exact = best
    assert exact.point is not None and exact.dims is not None
    degrees = degrees_dict(simulator.points.degrees(exact.point))
    predicted = predict(simulator, exact.point, exact.dims)
    return {
        "model": graph.model_name,
        "device": device.device.name,
        "rate": rate,
        "gpus": gpus,
        "replicas": replicas,
        "tokens_per_s": replicas * exact.tokens_per_s,
        "tpot_s": predicted.tpot_s,
        "ttft_s": predicted.ttft_s,
        "degrees": {**degrees, "replicas": replicas},
        "tried": tried,
    }
