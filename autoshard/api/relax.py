"""Why nothing is feasible, and the smallest change that would help."""

from dataclasses import replace

from autoshard.errors import InvalidInputError
from autoshard.hardware import Cluster
from autoshard.search.exact import ExactSearch
from autoshard.simulator import Simulator
from autoshard.units import GIB, MS
from autoshard.workload import Workload


def memory_message(simulator: Simulator) -> str:
    """One line for a model that fits at no legal degrees."""
    graph, cluster = simulator.graph, simulator.cluster
    need = simulator.smallest_bytes
    found = f"needs at least {need / GIB:.1f} GiB a device" if need < float("inf") else "fits at no legal degrees"
    line = (
        f"{graph.model_name} does not fit on {cluster.name}: {found}"
        f" (weights, KV of one sequence a dp rank, activations), a {cluster.device.name} has"
        f" {cluster.device.memory_bytes / GIB:.1f} GiB"
    )
    helps = [h for h in (_more_devices(simulator), _shorter(simulator), _smaller(simulator)) if h]
    return f"{line}; what would help: {'; or '.join(helps)}" if helps else line


def _fits(
    simulator: Simulator, *, cluster: Cluster | None = None, workload: Workload | None = None, free: bool = False
) -> bool:
    """Whether the model fits with something else changed, under what was fixed and pinned unless ``free``."""
    try:
        return Simulator(
            simulator.graph,
            cluster or simulator.cluster,
            workload or simulator.workload,
            fixed=None if free else simulator.fixed,
            pinned=None if free else simulator.pinned,
        ).any_fits
    except InvalidInputError:
        return False


def _more_devices(simulator: Simulator) -> str | None:
    if simulator.fixed or simulator.pinned:
        return "leave some of the fixed degrees and choices free" if _fits(simulator, free=True) else None
    count = simulator.cluster.num_devices
    for factor in (2, 4, 8, 16, 32, 64):
        if _fits(simulator, cluster=replace(simulator.cluster, num_devices=count * factor)):
            return f"{count * factor} devices ({factor}x)"
    return None


def _shorter(simulator: Simulator) -> str | None:
    workload = simulator.workload
    tokens = workload.cached_tokens_per_sequence
    while tokens > 256:
        tokens //= 2
        shorter = replace(workload, context=tokens, isl=None if workload.isl is None else tokens)
        if _fits(simulator, workload=shorter):
            return f"a context of {tokens}" if workload.isl is None else f"prompts of {tokens}"
    return None


def _smaller(simulator: Simulator) -> str | None:
    workload = simulator.workload
    if workload.dtype != "bfloat16" or "float8_e4m3fn" not in simulator.cluster.device.flops_per_s:
        return None
    return "fp8 weights (--dtype fp8)" if _fits(simulator, workload=replace(workload, dtype="float8_e4m3fn")) else None


def limit_message(simulator: Simulator) -> str:
    """One line for a model that fits but meets its limit at no strategy."""
    limit, name = simulator.limit_s, "TPOT" if simulator.workload.phase == "decode" else "TTFT"
    assert limit is not None
    fastest = ExactSearch(simulator).fastest_step()
    if fastest is None:
        return memory_message(simulator)
    step_s, point = fastest
    d = simulator.points.degrees(point)
    where = f"pp={d.pp} dp={d.dp} tp={d.tp} ep={d.ep} etp={d.etp} batch={d.batch}"
    return (
        f"no strategy of {simulator.graph.model_name} on {simulator.cluster.name} meets {name} <= {limit / MS:g} ms;"
        f" the fastest is {step_s / MS:.2f} ms at {where}"
    )
