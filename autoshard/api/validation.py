"""A plan, or the patterns of a model, on real ranks: the reduced model of its architecture, sharded and compared."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from autoshard.api.models import graph_of, source_of, written_source
from autoshard.api.pins import pins_for
from autoshard.api.plan import Plan
from autoshard.api.simulate import complete_degrees, complete_strategy
from autoshard.errors import InvalidInputError, PlanMismatchError, UnsupportedModelError
from autoshard.ir import OpGraph
from autoshard.sharding import Choice, Strategy, strategy_reasons
from autoshard.tracing import ModelSource, source_from_dict, trace_source
from autoshard.validate import ModelJob, ValidationReport, default_cases, plan_case
from autoshard.validate import validate as run_on_ranks

MOST_RANKS = 256
DTYPES: Mapping[str, tuple[str, ...]] = {
    "float32": ("float32",),
    "float64": ("float64",),
    "both": ("float32", "float64"),
}


def validate(
    subject: Plan | Any,
    *,
    nproc: int = 4,
    fixed: Mapping[str, int] | None = None,
    pinned: Mapping[str, Choice] | None = None,
    dtype: str = "both",
    timeout_s: float = 300.0,
    model: Any = None,
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Run a plan's own pattern (or that of ``fixed`` and ``pinned``), then all named patterns, on ``nproc`` gloo ranks.

    The model is built reduced with random weights; degrees are scaled to ``nproc``, which the case's notes say.
    ``model`` says how to build a plan's model where the plan cannot: one made from a live module, or whose factory is
    code outside this package (a plan file is data and has nothing run).

    Raises:
        InvalidInputError: for a wrong value, or degrees and choices that no rule allows.
        UnsupportedModelError: for a model that cannot be reduced, or was only known as a live module.
    """
    if nproc < 1:
        raise InvalidInputError(f"nproc={nproc} must be at least 1")
    if nproc > MOST_RANKS:
        raise InvalidInputError(f"nproc={nproc}: at most {MOST_RANKS} ranks are started on one machine")
    if not 0 < timeout_s < float("inf"):
        raise InvalidInputError(f"timeout_s={timeout_s:g} must be a positive number of seconds")
    if dtype not in DTYPES:
        raise InvalidInputError(f"unknown dtype {dtype!r}: choose from {', '.join(DTYPES)}")
    source, strategy = _asked(subject, model, fixed or {}, pinned or {}, progress)
    plan_tp = None if strategy is None else strategy.degrees.tp
    progress(f"tracing the reduced {source.name}")
    reduced = source.reduced(tp=nproc, ep=nproc, etp=nproc, nproc=nproc, plan_tp=plan_tp)
    graph = trace_source(reduced)
    cases = default_cases(graph, nproc, None)
    if strategy is not None:
        cases = (plan_case(graph, strategy, nproc, name="plan" if isinstance(subject, Plan) else "fixed"), *cases)
    sequences = nproc if nproc >= 4 else nproc * -(-4 // nproc)
    job = ModelJob(source=reduced.to_dict(), graph=graph, cases=cases, sequences=sequences)
    progress(f"running {len(cases)} cases on {nproc} ranks")
    reports = run_on_ranks([job], nproc=nproc, dtypes=DTYPES[dtype], timeout_s=timeout_s, python_path=(Path.cwd(),))
    return summary(source.name, nproc, reports)


def _asked(
    subject: Plan | Any,
    model: Any,
    fixed: Mapping[str, int],
    pinned: Mapping[str, Choice],
    progress: Callable[[str], None],
) -> tuple[ModelSource, Strategy | None]:
    """The model's source and the strategy asked for, None when only the patterns are."""
    if isinstance(subject, Plan):
        return _planned_source(subject, model, progress), _changed(subject.graph, subject.strategy, fixed, pinned)
    if model is not None:
        raise InvalidInputError("a model goes with a plan; here the model itself is what is validated")
    source = source_of(subject)
    if written_source(source) is None:
        raise UnsupportedModelError(f"{source.name} is only a live module: validate needs a config or factory")
    if not fixed and not pinned:
        return source, None
    progress(f"tracing {source.name}")
    graph = graph_of(subject, source)
    return source, complete_strategy(graph, complete_degrees(graph, fixed), pins_for(graph, pinned))


def _planned_source(plan: Plan, model: Any, progress: Callable[[str], None]) -> ModelSource:
    """How to build a plan's model: as the plan says, or as the caller does; it must be the one planned for."""
    identity = plan.data.model
    if model is not None:
        source = source_of(model)
    elif identity.source is None:
        raise UnsupportedModelError(
            f"the plan of {identity.name} was made from a live module: say which model it is (--model)"
        )
    else:
        source = source_from_dict(identity.source)
    if written_source(source) is None:
        raise UnsupportedModelError(f"{source.name} is only a live module: validate needs a config or factory")
    progress(f"tracing {source.name}")
    if trace_source(source).structural_hash() != identity.structural_hash:
        raise PlanMismatchError(f"the plan was made for {identity.name} ({identity.class_name}); {source.name} differs")
    return source


def _changed(graph: OpGraph, strategy: Strategy, fixed: Mapping[str, int], pinned: Mapping[str, Choice]) -> Strategy:
    """A plan's strategy with other degrees or choices."""
    if not fixed and not pinned:
        return strategy
    degrees = complete_degrees(graph, fixed) if fixed else strategy.degrees
    changed = replace(
        strategy,
        degrees=degrees,
        choices=tuple({**dict(strategy.choices), **pins_for(graph, pinned)}.items()),
        stages=strategy.stages if len(strategy.stages) == degrees.pp else (),
    )
    reasons = strategy_reasons(graph, changed)
    if reasons:
        raise InvalidInputError("; ".join(r.message for r in reasons))
    return changed


def summary(name: str, nproc: int, reports: tuple[ValidationReport, ...]) -> dict[str, Any]:
    """All reports as JSON data: the worst of every measure, the first case's traffic, and every case in ``cases``.

    ``logits_max_rel_err`` is the first case's in float64 where it ran, else in float32; ``by_dtype`` has the worst of
    all cases.
    """
    cases = [r.to_dict() for r in reports]
    first = max((c for c in cases if c["name"] == cases[0]["name"]), key=lambda c: str(c["dtype"]))
    return {
        "model": name,
        "nproc": nproc,
        "device": first["device"],
        "passed": all(r.passed for r in reports),
        "logits_max_rel_err": first["logits_max_rel_err"],
        "by_dtype": {
            dtype: {
                "logits_max_rel_err": _worst([r.logits_max_rel_err for r in reports if r.dtype == dtype]),
                "tolerance": next(r.tolerance for r in reports if r.dtype == dtype),
            }
            for dtype in dict.fromkeys(r.dtype for r in reports)
        },
        "collectives_match": all(r.collectives_match for r in reports),
        "parameter_bytes_match": all(r.parameter_bytes_match for r in reports),
        "expected": first["expected"],
        "observed": first["observed"],
        "cases": cases,
    }


def _worst(errors: list[float]) -> float | None:
    worst = max(errors)
    return worst if worst < float("inf") else None
