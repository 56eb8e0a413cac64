"""A plan for another program: its files, or why it cannot be said there and what comes nearest."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from autoshard.api.build_plan import build_plan, degrees_dict
from autoshard.api.candidates import KEYS
from autoshard.api.plan import Plan
from autoshard.api.plan_cluster import cluster_of
from autoshard.api.solve import make_simulator, solve
from autoshard.api.verdict import Request, make_request
from autoshard.api.verdict import judge as find_verdict
from autoshard.engines import Judge, engine_names
from autoshard.errors import AutoshardError, InvalidInputError
from autoshard.export import TARGETS, Export, Target
from autoshard.export.engines.launch import flag_targets, version_of
from autoshard.hardware import Cluster, parse_cluster
from autoshard.ir import OpGraph
from autoshard.sharding import Strategy
from autoshard.simulator import Simulator

SCHEMES = {"bfloat16": "bf16", "float16": "bf16", "float8_e4m3fn": "fp8"}
"""Formats of `autoshard.engines` by the dtype of a workload's weights."""
MOST_REASONS = 3
"""Reasons given in one refusal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Nearest:
    """The best strategy that a target would run, and its predicted tokens/s/GPU."""

    strategy: Strategy
    tokens_per_s_per_gpu: float

    def loss(self, plan: Plan) -> float:
        """Share of a plan's predicted throughput that is lost; negative if the nearest is predicted to be faster."""
        return 1.0 - self.tokens_per_s_per_gpu / plan.predicted.tokens_per_s_per_gpu


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """An export, of the plan itself or (``nearest``) of the best one the target can express; ``loss`` is predicted."""

    export: Export
    plan: Plan
    nearest: bool
    loss: float


def target_of(name: str) -> Target:
    """The target of a name. Raises InvalidInputError for an unknown one."""
    if name not in TARGETS:
        raise InvalidInputError(f"unknown target {name!r}: plans are exported to {', '.join(TARGETS)}")
    return TARGETS[name]


def judge_of(target: str, graph: OpGraph, cluster: Cluster, dtype: str) -> Judge | None:
    """The rules of ``autoshard check`` for a target; None for one that is no engine with rules of its own."""
    if target not in engine_names():
        return None
    version = version_of(target) if target in flag_targets() else None
    request = make_request(graph, cluster, engine=target, version=version, quant=SCHEMES.get(dtype, "bf16"))
    return Judge(request.launch)


def legality(target: str, graph: OpGraph, strategy: Strategy, judge: Judge | None) -> tuple[str, ...]:
    """Why a target would not start with a strategy: what cannot be said there, and the rules of ``autoshard check``."""
    reasons = TARGETS[target].reasons(graph, strategy)
    if judge is None:
        return reasons
    d = strategy.degrees
    found = judge.findings(pp=d.pp, dp=d.dp, tp=d.tp, ep=d.ep, etp=d.etp, replicas=d.replicas)
    return (*reasons, *(f.message for f in found if f.effect != "note" and f.message not in reasons))


def export(
    plan: Plan,
    to: str,
    *,
    nearest: bool = False,
    cluster: Cluster | str | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Exported:
    """Write a plan for a target.

    Args:
        plan: The plan.
        to: ``dtensor``, ``transformers``, ``vllm``, ``sglang``, ``trtllm`` or ``megatron``.
        nearest: Export the best plan that the target can express where it cannot express this one.
        cluster: Of the plan, where its name does not say it (a YAML file).
        progress: Is told what is being done.

    Raises:
        InvalidInputError: for an unknown target, or a plan it cannot express: the reasons, the nearest plan that it can
            and the predicted loss.
    """
    target = target_of(to)
    judge = None
    if to in engine_names():
        judge = judge_of(to, plan.graph, _cluster(plan, cluster), plan.data.workload.dtype)
    reasons = legality(to, plan.graph, plan.strategy, judge)
    if not reasons:
        written = with_notes(target.write(plan.data), plan, judge)
        return Exported(export=written, plan=plan, nearest=False, loss=0.0)
    progress(f"searching the nearest plan for {to}")
    found, why_not = _search(plan, to, cluster)
    if nearest and found is not None:
        other = plan_of(plan, found.strategy, cluster)
        written = with_notes(target.write(other.data), other, judge)
        return Exported(export=written, plan=other, nearest=True, loss=found.loss(plan))
    more = f"; and {len(reasons) - MOST_REASONS} more reasons" if len(reasons) > MOST_REASONS else ""
    raise InvalidInputError(
        f"{target.version} cannot express this plan: {'; '.join(reasons[:MOST_REASONS])}{more}."
        f" {why_not if found is None else _described(found, plan)}"
    )


def with_notes(written: Export, plan: Plan, judge: Judge | None) -> Export:
    """An export with what ``autoshard check`` notes about the plan on that engine: what waits, what does not fit."""
    if judge is None:
        return written
    w = plan.data.workload
    request = Request(
        launch=judge.launch,
        context=w.cached_tokens_per_sequence,
        kv_dtype=w.kv_dtype,
        fixed={n: getattr(plan.degrees, n) for n in KEYS},
        batch=plan.degrees.batch,
    )
    verdict = find_verdict(request)
    found = [f.message for f in (*verdict.notes, *verdict.reasons)]
    return replace(written, notes=(*written.notes, *(n for n in dict.fromkeys(found) if n not in written.notes)))


def _search(plan: Plan, to: str, cluster: Cluster | str | None) -> tuple[Nearest | None, str]:
    try:
        where = _cluster(plan, cluster)
        found = nearest_strategy(make_simulator(plan.graph, where, plan.data.workload), to)
    except AutoshardError as error:
        return None, f"The nearest plan is not known: {error}"
    return found, f"No plan that it can express is feasible on {where.name}"


def _described(found: Nearest, plan: Plan) -> str:
    d, loss = found.strategy.degrees, found.loss(plan)
    change = f"{100 * loss:.1f} % less" if loss >= 0 else f"{-100 * loss:.1f} % more"
    return (
        f"Nearest: pp={d.pp} dp={d.dp} tp={d.tp} ep={d.ep} etp={d.etp} batch={d.batch} x{d.replicas} with its own"
        f" choices, {found.tokens_per_s_per_gpu:.1f} tokens/s/GPU predicted, {change} (--nearest exports it)"
    )


def nearest_strategy(simulator: Simulator, to: str) -> Nearest | None:
    """The best of all feasible degree points at the choices the target makes there; None if there is none."""
    judge = judge_of(to, simulator.graph, simulator.cluster, simulator.workload.dtype)
    best: tuple[float, int, tuple[int, ...]] | None = None
    points: dict[tuple[int, ...], list[int]] = {}
    p = simulator.points
    for i in range(len(p)):
        points.setdefault((int(p.pp[i]), int(p.dp[i]), int(p.tp[i]), int(p.ep[i])), []).append(i)
    for members in points.values():
        degrees = p.degrees(members[0])
        strategy = TARGETS[to].strategy(simulator.graph, degrees)
        if strategy is None or legality(to, simulator.graph, strategy, judge):
            continue
        try:
            chosen = tuple(v.choices.index(strategy.choice(v.key)) for v in simulator.variables)
        except ValueError:
            continue
        dims = np.tile(np.array(chosen, dtype=np.int64), (len(members), 1))
        rates = simulator.evaluate(np.array(members), dims).tokens_per_s / simulator.cluster.num_devices
        at = int(np.argmax(rates))
        if rates[at] > 0 and (best is None or rates[at] > best[0]):
            best = (float(rates[at]), members[at], chosen)
    if best is None:
        return None
    rate, point, options = best
    return Nearest(strategy=simulator.strategy(point, options), tokens_per_s_per_gpu=rate)


def plan_of(plan: Plan, strategy: Strategy, cluster: Cluster | str | None) -> Plan:
    """A plan of one strategy, for the model, cluster and workload of another plan."""
    where = _cluster(plan, cluster)
    fixed = degrees_dict(strategy.degrees)
    simulator = make_simulator(plan.graph, where, plan.data.workload, fixed=fixed, pinned=dict(strategy.choices))
    return Plan(build_plan(solve(simulator, algorithm="exact"), plan.data.model.source))


def _cluster(plan: Plan, cluster: Cluster | str | None) -> Cluster:
    """The cluster of a plan, by its name unless it is given; it must be the plan's."""
    return cluster_of(plan.data, parse_cluster(cluster) if isinstance(cluster, str) else cluster)
