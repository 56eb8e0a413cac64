"""Judges a launch at degrees that are fixed in part: which completion serves it best, why not, and what is near.

Legality is `autoshard.engines` (data); physics is the same for all. Without an engine the question is about what
autoshard's own ranks execute. Fitting is asked apart from legality, so that both reasons can be named at once.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from autoshard.api.candidates import KEYS, Candidate, candidates, distance
from autoshard.api.pins import parse_fix, parse_options
from autoshard.engines import (
    Finding,
    Judge,
    Launch,
    MemoryModel,
    RankMemory,
    Scheme,
    engine_version,
    find_scheme,
    read_engine,
)
from autoshard.errors import InvalidInputError
from autoshard.hardware import Cluster, parse_cluster
from autoshard.ir import OpGraph
from autoshard.sharding.legality import expert_counts
from autoshard.simulator.points import LARGEST_PIN
from autoshard.units import GIB
from autoshard.workload import Workload

NUM_NEAREST = 5
MEMORY_RULE = "memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is asked: a launch, a context, and the degrees that are fixed; ``batch`` only brings a note."""

    launch: Launch
    context: int
    kv_dtype: str
    fixed: Mapping[str, int]
    batch: int | None = None


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The answer for the completion that serves the request best (or breaks the fewest rules)."""

    request: Request
    chosen: Candidate
    findings: tuple[Finding, ...]
    memory: RankMemory

    @cached_property
    def broken(self) -> tuple[Finding, ...]:
        """Rules that make it illegal."""
        return tuple(f for f in self.findings if f.effect != "note")

    @property
    def legal(self) -> bool:
        """Whether no rule is broken."""
        return not self.broken

    @property
    def fits(self) -> bool:
        """Whether weights, workspace and one request fit on every rank."""
        return self.memory.fits

    @property
    def reasons(self) -> tuple[Finding, ...]:
        """Every rule that is broken, memory included."""
        return (*self.broken, *(() if self.fits else (memory_finding(self.request, self.memory),)))

    @property
    def notes(self) -> tuple[Finding, ...]:
        """What is legal and worth knowing."""
        found = tuple(f for f in self.findings if f.effect == "note")
        batch, most = self.request.batch, self.memory.max_concurrency * self.chosen.dp
        if batch is None or batch <= most:
            return found
        queued = Finding(
            rule="batch vs cache",
            values={"batch": batch, "max_concurrency": round(most, 2)},
            message=f"batch={batch} is more than the {most:.1f} requests of {self.request.context:,} tokens that a"
            " replica's cache holds: the others would wait",
            effect="note",
            source="counting",
        )
        return (*found, queued)


def memory_finding(request: Request, memory: RankMemory) -> Finding:
    """Why a request does not fit, in numbers."""
    m, device = memory, request.launch.cluster.device.name
    other = m.context + m.communication + m.graphs
    parts = (
        f"weights {m.weights.total / GIB:.1f}, activations {m.activations / GIB:.1f}, context, buffers and graphs"
        f" {other / GIB:.1f} GiB"
    )
    need = f"one request of {request.context:,} tokens needs {m.request / GIB:.2f}"
    if m.budget < 0:
        what = (
            f"{parts} are {-m.budget / GIB:.1f} GiB more than the engine may use of the {device}'s"
            f" {m.capacity / GIB:.1f}; beside them {need}"
        )
    elif m.request > m.budget:
        what = (
            f"{parts} leave {m.budget / GIB:.1f} GiB of the {device}'s {m.capacity / GIB:.1f} to the KV cache; {need}"
        )
    else:
        what = f"{parts} and one request of {m.request / GIB:.2f} exceed the {device}'s {m.capacity / GIB:.1f} GiB"
    values = {
        "weights_gib": m.weights.total / GIB,
        "activations_gib": m.activations / GIB,
        "other_gib": other / GIB,
        "request_gib": m.request / GIB,
        "kv_budget_gib": m.budget / GIB,
        "capacity_gib": m.capacity / GIB,
    }
    return Finding(
        rule=MEMORY_RULE,
        values={k: round(v, 3) for k, v in values.items()},
        message=what,
        effect="refused",
        source=request.launch.engine.memory.source.get("fraction", "counting"),
    )


def judge(request: Request) -> Verdict:
    """The verdict on a request: legal if any completion is, fitting if any legal one fits."""
    launch = request.launch
    asked = _candidates(request, request.fixed)
    rules = Judge(launch, context=request.context)
    memory = MemoryModel(launch, context=request.context, kv_dtype=request.kv_dtype)
    found = [(c, rules.findings(**c.degrees(), replicas=c.replicas)) for c in asked]
    least = min(sum(f.effect != "note" for f in findings) for _, findings in found)
    best: Verdict | None = None
    for candidate, findings in found:
        if sum(f.effect != "note" for f in findings) > least:
            continue
        at = memory.at(**candidate.degrees())
        verdict = Verdict(request=request, chosen=candidate, findings=findings, memory=at)
        if at.fits:
            return replace(verdict, findings=(*findings, *_why_ep(request, candidate, rules)))
        if best is None or at.budget - at.request > best.memory.budget - best.memory.request:
            best = verdict
    assert best is not None
    return best


def _why_ep(request: Request, taken: Candidate, rules: Judge) -> tuple[Finding, ...]:
    """A note where expert parallelism was left free and only some of it is legal: a launch without it would fail."""
    if taken.ep == 1 or {"ep", "etp"} & set(request.fixed):
        return ()
    without = replace(taken, ep=1, etp=taken.dp * taken.tp)
    broken = [f for f in rules.findings(**without.degrees(), replicas=without.replicas) if f.effect != "note"]
    return tuple(
        Finding(
            rule="ep is needed",
            values={"ep": taken.ep},
            message=f"ep={taken.ep} was taken, as the request leaves it free: with ep=1, {f.message}",
            effect="note",
            source=f.source,
        )
        for f in broken[:1]
    )


def _candidates(request: Request, fixed: Mapping[str, int], *, idle: bool = False) -> list[Candidate]:
    graph, cluster = request.launch.graph, request.launch.cluster
    return candidates(
        fixed,
        num_devices=cluster.num_devices,
        num_layers=len(graph.layers),
        has_experts=bool(expert_counts(graph)),
        idle=idle,
    )


def nearest_plans(request: Request, count: int = NUM_NEAREST) -> list[dict[str, Any]]:
    """Legal plans that fit, nearest to the request first; each is judged and its memory counted like the request's."""
    launch = request.launch
    rules = Judge(launch, context=request.context)
    memory = MemoryModel(launch, context=request.context, kv_dtype=request.kv_dtype)
    devices = launch.cluster.num_devices
    kept = {k: v for k, v in request.fixed.items() if k in (*KEYS, "replicas")}
    found: list[dict[str, Any]] = []
    for c in sorted(_candidates(request, {}, idle=True), key=lambda c: distance(c, kept, devices)):
        if any(f.effect != "note" for f in rules.findings(**c.degrees(), replicas=c.replicas)):
            continue
        at = memory.at(**c.degrees())
        if not at.fits:
            continue
        changed = {k: [v, getattr(c, k)] for k, v in kept.items() if getattr(c, k) != v}
        found.append(
            {
                "degrees": c.to_dict(),
                "changed": changed,
                "gpus": c.world * c.replicas,
                "memory_gib": round(at.total / GIB, 2),
                "max_concurrency": concurrency(at, c),
            }
        )
        if len(found) == count:
            break
    return found


def concurrency(memory: RankMemory, c: Candidate) -> float | None:
    """Requests of the context that a replica holds; None if they hold nothing."""
    each = memory.max_concurrency * c.dp
    return None if each == float("inf") else round(each, 2)


def make_request(
    graph: OpGraph,
    cluster: Cluster | str,
    *,
    fix: str | Mapping[str, int] | None = None,
    engine: str | None = None,
    version: str | None = None,
    quant: str | Scheme = "bf16",
    context: int = 4096,
    kv_dtype: str = "bf16",
    options: str | Mapping[str, Any] | None = None,
    positions: int = 0,
) -> Request:
    """A checked request about a traced model; ``positions`` as in `Launch`.

    Raises:
        InvalidInputError: for an unknown engine, version, quantisation, option, degree or dtype.
    """
    profile = read_engine(engine or "torch")
    workload = Workload(context=context, kv_dtype=kv_dtype)
    launch = Launch(
        graph=graph,
        cluster=parse_cluster(cluster) if isinstance(cluster, str) else cluster,
        engine=profile,
        version=engine_version(profile, version),
        scheme=quant if isinstance(quant, Scheme) else find_scheme(quant),
        options=profile.with_options(parse_options(options)),
        positions=positions,
    )
    fixed = parse_fix(fix)
    for name, value in fixed.items():
        if value > LARGEST_PIN:
            raise InvalidInputError(f"{name}={value} is more than {LARGEST_PIN:,}")
    batch = fixed.pop("batch", None)
    return Request(launch=launch, context=context, kv_dtype=workload.kv_dtype, fixed=fixed, batch=batch)


def with_cluster(request: Request, cluster: Cluster) -> Request:
    """The request on another cluster."""
    return replace(request, launch=replace(request.launch, cluster=cluster))


def with_scheme(request: Request, scheme: Scheme) -> Request:
    """The request with weights stored otherwise."""
    return replace(request, launch=replace(request.launch, scheme=scheme))


def any_plan(request: Request) -> Candidate | None:
    """The nearest legal plan that fits, or None."""
    found = nearest_plans(request, 1)
    if not found:
        return None
    return Candidate(**found[0]["degrees"])
