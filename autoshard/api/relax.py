"""Why nothing is feasible, and the smallest change of each kind that would help; each is tried before it is named.

Kinds: leaving one fixed degree or choice free, more devices, a shorter context, lower precision, a looser limit.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from autoshard.errors import InvalidInputError
from autoshard.hardware import Cluster
from autoshard.search.exact import ExactSearch
from autoshard.simulator import Simulator
from autoshard.simulator.memory import WORKSPACE_BYTES
from autoshard.units import GIB, MS
from autoshard.workload import Workload

FACTORS = (1.5, 2, 3, 4, 6, 8, 12, 16, 32, 64)
LIMIT_FACTORS = (2.0, 4.0)
"""Of the devices, where a limit on time binds: beyond these, more devices hardly shorten a step."""
SHORTEST = 256

Works = Callable[[Simulator], bool]


def memory_message(simulator: Simulator) -> str:
    """One line for a model that fits at no legal degrees: what binds, and what would help."""
    graph, cluster = simulator.graph, simulator.cluster
    need = simulator.smallest_bytes
    found = f"needs at least {need / GIB:.1f} GiB a device" if need < float("inf") else "fits at no legal degrees"
    line = (
        f"{graph.model_name} does not fit on {cluster.name}: {found} ({smallest_parts(simulator)}), a"
        f" {cluster.device.name} has {cluster.device.memory_bytes / GIB:.1f} GiB"
    )
    helps = list(what_helps(simulator, lambda s: s.any_fits, FACTORS))
    return f"{line}; what would help: {'; or '.join(helps)}" if helps else line


def smallest_parts(simulator: Simulator) -> str:
    """The terms of the strategy that needs the least memory, the largest of weights, KV and activations first."""
    point = int(simulator.minimum_bytes().argmin())
    dims = []
    for v, variable in enumerate(simulator.variables):
        total = np.zeros(len(variable.choices))
        for part in simulator.parts:
            for index, table in (*part.weights, *part.kv):
                if index == v:
                    total = total + table[point]
        dims.append(int(np.where(variable.legal[point], total, np.inf).argmin()))
    e = simulator.evaluate(np.array([point]), np.array([dims], dtype=np.int64))
    parts = {
        "weights": float(e.weights_bytes[0]),
        "KV": float(e.kv_bytes[0]),
        "activations": float(e.activation_bytes[0]),
    }
    listed = [f"{name} {size / GIB:.1f}" for name, size in sorted(parts.items(), key=lambda p: -p[1])]
    return ", ".join([*listed, f"workspace {WORKSPACE_BYTES / GIB:.1f}"])


def limit_message(simulator: Simulator) -> str:
    """One line for a model that fits but meets its limit at no strategy: the fastest, and what would help."""
    limit, name = simulator.limit_s, "TPOT" if simulator.workload.phase == "decode" else "TTFT"
    assert limit is not None
    fastest = ExactSearch(simulator).fastest_step()
    if fastest is None:
        return memory_message(simulator)
    step_s, point = fastest
    d = simulator.points.degrees(point)
    where = f"pp={d.pp} dp={d.dp} tp={d.tp} ep={d.ep} etp={d.etp} batch={d.batch}"
    helps = [f"{name} <= {looser_ms(step_s):g} ms", *what_helps(simulator, _meets_limit, LIMIT_FACTORS)]
    return (
        f"no strategy of {simulator.graph.model_name} on {simulator.cluster.name} meets {name} <= {limit / MS:g} ms;"
        f" the fastest is {step_s / MS:.2f} ms at {where}; what would help: {'; or '.join(helps)}"
    )


def looser_ms(step_s: float) -> float:
    """The least limit of three digits, in milliseconds, that a step meets."""
    ms = step_s / MS
    digit = 10.0 ** (math.floor(math.log10(ms)) - 2)
    return math.ceil(ms / digit - 1e-9) * digit


def _meets_limit(simulator: Simulator) -> bool:
    if not simulator.any_fits:
        return False
    fastest = ExactSearch(simulator).fastest_step()
    assert simulator.limit_s is not None
    return fastest is not None and fastest[0] <= simulator.limit_s


def what_helps(simulator: Simulator, works: Works, factors: tuple[float, ...]) -> Iterator[str]:
    """The smallest change of every kind under which ``works`` holds."""
    yield from _freed(simulator, works)
    count = simulator.cluster.num_devices
    counts = [int(count * f) for f in factors if int(count * f) > count]
    more = [(f"{n} devices ({n / count:g}x)", changed(simulator, cluster=_grown(simulator, n))) for n in counts]
    yield from first_that_holds(more, works)
    workload = simulator.workload
    shorter = [(what, changed(simulator, workload=other)) for what, other in _shorter(workload)]
    if shorter and _holds(shorter[-1][1], works):  # if the shortest does not help, none does
        yield from first_that_holds(shorter, works)
    fp8 = replace(workload, dtype="float8_e4m3fn")
    if workload.dtype == "bfloat16" and "float8_e4m3fn" in simulator.cluster.device.flops_per_s:
        yield from first_that_holds([("fp8 weights (--dtype fp8)", changed(simulator, workload=fp8))], works)


Change = Callable[[], Simulator | None]


def first_that_holds(changes: list[tuple[str, Change]], works: Works) -> Iterator[str]:
    """The first of ever larger changes that works."""
    yield from next(([text] for text, change in changes if _holds(change, works)), [])


def _holds(change: Change, works: Works) -> bool:
    other = change()
    return other is not None and works(other)


def changed(
    simulator: Simulator,
    *,
    cluster: Cluster | None = None,
    workload: Workload | None = None,
    without: str | None = None,
) -> Change:
    """Builds the simulator with something else; None where no degrees are legal then."""

    def build() -> Simulator | None:
        try:
            return Simulator(
                simulator.graph,
                cluster or simulator.cluster,
                workload or simulator.workload,
                fixed={k: v for k, v in simulator.fixed.items() if k != without},
                pinned={k: v for k, v in simulator.pinned.items() if k != without},
                uneven=simulator.uneven,
                wider=simulator.wider,
            )
        except InvalidInputError:
            return None

    return build


def _freed(simulator: Simulator, works: Works) -> Iterator[str]:
    """One fixed degree or choice whose freedom is enough; all of them, if only that is."""
    held = [*simulator.fixed, *simulator.pinned]
    for name in held:
        if _holds(changed(simulator, without=name), works):
            yield f"leaving {name} free"
            return
    if len(held) > 1:
        free = replace_free(simulator)
        if free is not None and works(free):
            yield "leaving all fixed degrees and choices free"


def replace_free(simulator: Simulator) -> Simulator | None:
    """The simulator with nothing fixed or pinned."""
    try:
        return Simulator(
            simulator.graph,
            simulator.cluster,
            simulator.workload,
            uneven=simulator.uneven,
            wider=simulator.wider,
        )
    except InvalidInputError:
        return None


def _grown(simulator: Simulator, count: int) -> Cluster:
    return replace(simulator.cluster, num_devices=count)


def _shorter(workload: Workload) -> Iterator[tuple[str, Workload]]:
    """Ever shorter contexts or prompts, down to `SHORTEST` tokens; in serving the longer of the two halves."""
    tokens, prompt, answer = workload.cached_tokens_per_sequence, workload.prompt_tokens, workload.answer_tokens
    while tokens > SHORTEST:
        if workload.phase == "serve":
            prompt, answer = (prompt // 2, answer) if prompt >= answer else (prompt, answer // 2)
            tokens = prompt + answer
            halved = {"prompts": (prompt, workload.prompt_tokens), "answers": (answer, workload.answer_tokens)}
            text = " and ".join(f"{what} of {now}" for what, (now, before) in halved.items() if now != before)
            yield text, replace(workload, isl=prompt, osl=answer)
            continue
        tokens //= 2
        what, isl = ("a context", None) if workload.isl is None else ("prompts", tokens)
        yield f"{what} of {tokens}", replace(workload, context=tokens, isl=isl)
