"""A plan for another program: its files, or why it cannot be said there and what comes nearest."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from autoshard.api.build_plan import build_plan, degrees_dict
from autoshard.api.engine_rules import EngineRules, engine_rules
from autoshard.api.nearest import Nearest, legality, nearest_strategy
from autoshard.api.plan import Plan
from autoshard.api.plan_cluster import cluster_of
from autoshard.api.solve import make_simulator, solve
from autoshard.engines import engine_names
from autoshard.errors import AutoshardError, InvalidInputError
from autoshard.export import TARGETS, Export, Target
from autoshard.hardware import Cluster, parse_cluster
from autoshard.sharding import Strategy
from autoshard.sharding.wider import check_runs

MOST_REASONS = 3
"""Reasons given in one refusal."""


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
        InvalidInputError: for an unknown target, a plan that is simulated only, or one that the target cannot express:
            the reasons, the nearest plan that it can and the predicted loss.
    """
    target = target_of(to)
    check_runs(plan.graph, plan.strategy)
    rules = None
    if to in engine_names():
        rules = engine_rules(to, plan.graph, _cluster(plan, cluster), plan.data.workload)
    reasons = legality(to, plan.graph, plan.strategy, rules)
    if not reasons:
        written = with_notes(target.write(plan.data), plan, rules)
        return Exported(export=written, plan=plan, nearest=False, loss=0.0)
    progress(f"searching the nearest plan for {to}")
    found = _search(plan, to, cluster)
    if nearest and found.strategy is not None:
        other = plan_of(plan, found.strategy, cluster)
        written = with_notes(target.write(other.data), other, rules)
        return Exported(export=written, plan=other, nearest=True, loss=loss_of(found, plan))
    more = f"; and {len(reasons) - MOST_REASONS} more reasons" if len(reasons) > MOST_REASONS else ""
    raise InvalidInputError(
        f"{target.version} cannot express this plan: {'; '.join(reasons[:MOST_REASONS])}{more}."
        f" {_described(found, plan)}"
    )


def loss_of(found: Nearest, plan: Plan) -> float:
    """Share of a plan's predicted throughput that is lost; negative if the nearest is predicted to be faster."""
    return 1.0 - found.tokens_per_s_per_gpu / plan.predicted.tokens_per_s_per_gpu


def with_notes(written: Export, plan: Plan, rules: EngineRules | None) -> Export:
    """An export with what ``autoshard check`` notes about the plan on that engine, such as requests that wait."""
    if rules is None:
        return written
    found = rules.notes(plan.degrees)
    return replace(written, notes=(*written.notes, *(n for n in found if n not in written.notes)))


def _search(plan: Plan, to: str, cluster: Cluster | str | None) -> Nearest:
    try:
        where = _cluster(plan, cluster)
        return nearest_strategy(make_simulator(plan.graph, where, plan.data.workload), to)
    except AutoshardError as error:
        return Nearest(why_none=str(error))


def _described(found: Nearest, plan: Plan) -> str:
    if found.strategy is None:
        return f"No plan that it can express is feasible on {plan.data.cluster.name}: {found.why_none}"
    d, loss = found.strategy.degrees, loss_of(found, plan)
    change = f"{100 * loss:.1f} % less" if loss >= 0 else f"{-100 * loss:.1f} % more"
    return (
        f"Nearest: pp={d.pp} dp={d.dp} tp={d.tp} ep={d.ep} etp={d.etp} batch={d.batch} x{d.replicas},"
        f" {found.tokens_per_s_per_gpu:.1f} tokens/s/GPU predicted, {change} (--nearest exports it)"
    )


def plan_of(plan: Plan, strategy: Strategy, cluster: Cluster | str | None) -> Plan:
    """A plan of one strategy, for the model, cluster and workload of another plan."""
    where = _cluster(plan, cluster)
    fixed = degrees_dict(strategy.degrees)
    simulator = make_simulator(plan.graph, where, plan.data.workload, fixed=fixed, pinned=dict(strategy.choices))
    return Plan(build_plan(solve(simulator, algorithm="exact"), plan.data.model.source))


def _cluster(plan: Plan, cluster: Cluster | str | None) -> Cluster:
    """The cluster of a plan, by its name unless it is given; it must be the plan's."""
    return cluster_of(plan.data, parse_cluster(cluster) if isinstance(cluster, str) else cluster)
