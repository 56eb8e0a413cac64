"""A plan, or the patterns of a model, proved tier by tier: at full size without numbers, then reduced on ranks."""

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from autoshard.api.models import graph_of, source_of, written_source
from autoshard.api.pins import pins_for
from autoshard.api.plan import Plan
from autoshard.api.simulate import complete_degrees, complete_strategy
from autoshard.calibrate.measure import has_cuda, time_strategy
from autoshard.errors import InvalidInputError, PlanMismatchError, UnsupportedModelError
from autoshard.ir import OpGraph
from autoshard.sharding import Choice, Degrees, Strategy, paddings, strategy_reasons
from autoshard.sharding.wider import check_runs
from autoshard.tracing import ConfigSource, ModelSource, source_from_dict, trace_source
from autoshard.tracing.quantised import blocks_of, reduced_quantisation
from autoshard.tracing.uneven import make_uneven
from autoshard.validate import (
    Case,
    ModelJob,
    ValidationReport,
    check_joined,
    default_cases,
    is_first,
    plan_case,
    run_full_size,
    scale_degrees,
)
from autoshard.validate import validate as run_on_ranks
from autoshard.validate.quantised import Form, form_of, write_checkpoint

MOST_RANKS = 256
NPROC = 4
"""Real ranks that are started unless another number is asked for."""
ALL_PATTERNS = 16
"""On more ranks than these only the plan's own case runs, or, for a model, Megatron's at every kind of degrees."""
TIMEOUT_S, TIMEOUT_S_PER_SIMULATED_RANK = 300.0, 20.0
"""Seconds for all ranks unless others are asked for: simulated ranks take turns."""
LEAST = 4
"""What sizes divide by at least, whatever the degrees."""
DTYPES: Mapping[str, tuple[str, ...]] = {
    "float32": ("float32",),
    "float64": ("float64",),
    "both": ("float32", "float64"),
}


def validate(
    subject: Plan | Any,
    *,
    nproc: int | None = None,
    simulate_ranks: int | None = None,
    fixed: Mapping[str, int] | None = None,
    pinned: Mapping[str, Choice] | None = None,
    allow_uneven: bool = False,
    dtype: str = "both",
    timeout_s: float | None = None,
    model: Any = None,
    device: str | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Prove a plan's own pattern (or that of ``fixed`` and ``pinned``), cheapest tier first.

    1. ``full_size``: the strategy at its true size and world size, on meta tensors: shapes, bytes, collectives.
    2. ``simulated_ranks``, with ``simulate_ranks``: numerics of that many ranks, threads of this process.
    3. ``gloo_ranks``: numerics on ``nproc`` real ranks (4; none with ``simulate_ranks`` unless ``nproc`` is given).
    4. ``op_times``, for a plan and with ``device`` (``cpu`` or ``cuda``): every fused op timed at the shapes of one
       rank, beside its prediction. Collectives are not measured by it. With as many GPUs as ranks, 3 runs over nccl.

    In a torchrun job (any number of nodes) 3 runs on that job's ranks instead, over nccl with ``device="cuda"``; every
    rank calls this alike, and 1 and 4 are done by the first.

    ``timeout_s`` is for each of 2 and 3, by default 300, or 20 a simulated rank if that is more.

    In 2 and 3 the model is built reduced with random weights, degrees are scaled to the ranks, which the case's notes
    say, and named patterns run after the plan's own. ``model`` says how to build a plan's model where the plan cannot:
    one made from a live module, or whose factory is code outside this package (a plan file is data and has nothing
    run).

    Raises:
        InvalidInputError: for a wrong value, or degrees and choices that no rule allows.
        UnsupportedModelError: for a model that cannot be reduced, or was only known as a live module.
        LaunchTimeout: when ranks are not done in time.
    """
    for name, value in (("nproc", nproc), ("simulate_ranks", simulate_ranks)):
        if value is not None and value < 1:
            raise InvalidInputError(f"{name}={value} must be at least 1")
        if value is not None and value > MOST_RANKS:
            raise InvalidInputError(f"{name}={value}: at most {MOST_RANKS} ranks are started on one machine")
    if timeout_s is None:
        timeout_s = max(TIMEOUT_S, TIMEOUT_S_PER_SIMULATED_RANK * (simulate_ranks or 0))
    if not 0 < timeout_s < float("inf"):
        raise InvalidInputError(f"timeout_s={timeout_s:g} must be a positive number of seconds")
    if dtype not in DTYPES:
        raise InvalidInputError(f"unknown dtype {dtype!r}: choose from {', '.join(DTYPES)}")
    if device not in (None, "cpu", "cuda") or (device == "cuda" and not torch.cuda.is_available()):
        raise InvalidInputError(
            f"cannot validate on {device!r}: this machine has cpu{has_cuda()}; without a device, ranks run on the CPU"
        )
    joined = check_joined(nproc, simulate_ranks, device)
    nproc = joined or nproc
    if isinstance(subject, Plan):
        check_runs(subject.graph, subject.strategy)
    source, graph, strategy = _asked(subject, model, fixed or {}, pinned or {}, progress, uneven=allow_uneven)
    tiers = []
    if graph is not None and strategy is not None and is_first():
        progress(f"running {source.name} at full size on meta tensors")
        length = subject.data.workload.tokens_per_sequence if isinstance(subject, Plan) else 1
        tiers.append(_full_size(source, graph, strategy, length))
    numbers = []
    if simulate_ranks is not None:
        numbers.append((simulate_ranks, True))
    if nproc is not None or simulate_ranks is None:
        numbers.append((nproc or NPROC, False))
    reports: list[ValidationReport] = []
    own = "plan" if isinstance(subject, Plan) else "fixed"
    on_gpus = device == "cuda" and (joined is not None or torch.cuda.device_count() >= (nproc or NPROC))
    for size, simulated in numbers:
        with TemporaryDirectory(prefix="autoshard-quantised-") as folder:
            job = _reduced_job(source, graph, strategy, size, own, Path(folder), progress)
            progress(f"running {len(job.cases)} cases on {size} {'simulated ' if simulated else ''}ranks")
            found = run_on_ranks(
                [job],
                nproc=size,
                dtypes=DTYPES[dtype],
                device="cuda" if on_gpus and not simulated else "cpu",
                timeout_s=timeout_s,
                python_path=(Path.cwd(),),
                simulated=simulated,
            )
        reports += found
        real = "nccl_ranks" if on_gpus else "gloo_ranks"
        tiers.append(_numbers_tier("simulated_ranks" if simulated else real, size, found))
    if device is not None and isinstance(subject, Plan) and strategy is not None and is_first():
        progress(f"timing one rank's ops on {device}")
        tiers.append(op_times(subject, strategy, device))
    data = summary(source.name, numbers[-1][0], tuple(reports))
    return {**data, "passed": all(t["passed"] is not False for t in tiers), "tiers": tiers}


def _reduced_job(
    source: ModelSource,
    full: OpGraph | None,
    strategy: Strategy | None,
    nproc: int,
    own: str,
    folder: Path,
    progress: Callable[[str], None],
) -> ModelJob:
    """The reduced model on ``nproc`` ranks: the strategy's own case, then the patterns (few on many ranks).

    What ``strategy`` fills up in the ``full`` model does not divide in the reduced one either. A model whose config
    says that its weights are quantised by blocks has a quantised checkpoint written into ``folder``, for ranks to load.
    Where only the strategy's own case runs, sizes divide by its degrees (by 64 in all dims, a model has 20 GB), and
    every stage has a layer.
    """
    plan_tp = None if strategy is None else strategy.degrees.tp
    progress(f"tracing the reduced {source.name}")
    d, least = Degrees(tp=nproc, ep=nproc, etp=nproc, dp=nproc, batch=nproc), nproc
    if full is not None and strategy is not None and nproc > ALL_PATTERNS:
        (d, _), least = scale_degrees(full, strategy.degrees, nproc, uneven=strategy.uneven), LEAST
    reduced = source.reduced(tp=d.tp, ep=d.ep, etp=d.etp, pp=d.pp, nproc=least, plan_tp=plan_tp)
    if full is not None and strategy is not None and nproc > 1:
        kinds = _uneven_kinds(full, strategy)
        reduced = make_uneven(make_uneven(reduced, kinds & {"experts"}, d.ep), kinds - {"experts"}, max(d.tp, d.etp))
    reduced, form = _quantised_source(source, reduced, math.lcm(d.tp, d.etp, least))
    graph = trace_source(reduced)
    if form is not None:
        progress(f"writing the reduced {source.name} in {form}")
        whole = reduced.build(device="cpu", dtype="float32", seed=0, experts="eager")
        write_checkpoint(whole, graph, form, blocks_of(graph), folder)
    cases: tuple[Case, ...] = () if strategy is None else (plan_case(graph, strategy, nproc, name=own),)
    if nproc <= ALL_PATTERNS:
        cases += default_cases(graph, nproc, None)
    elif not cases:
        cases = tuple(c for c in default_cases(graph, nproc, None) if c.name.endswith("/megatron"))
    sequences = nproc if nproc >= 4 else nproc * -(-4 // nproc)
    checkpoint = None if form is None else str(folder)
    return ModelJob(source=reduced.to_dict(), graph=graph, cases=cases, sequences=sequences, checkpoint=checkpoint)


def _quantised_source(full: ModelSource, reduced: ModelSource, ranks: int) -> tuple[ModelSource, Form | None]:
    """The reduced source quantised as the full one is, and how; as it is where there is no such format."""
    if not isinstance(full, ConfigSource) or not isinstance(reduced, ConfigSource):
        return reduced, None
    fields = reduced_quantisation(full.config, reduced.config, ranks)
    changed = replace(reduced, config={**reduced.config, **fields})
    return changed, form_of(changed.config)


def _uneven_kinds(graph: OpGraph, strategy: Strategy) -> set[str]:
    """What kinds of sizes a strategy fills up."""
    dims = {(d.dim, d.axis) for padded in paddings(graph, strategy).values() for d in padded}
    kinds = {
        "vocab" if dim == "vocab" else "experts" if (dim, axis) == ("experts", "ep") else dim for dim, axis in dims
    }
    heads = {k for k in kinds if "heads" in k}
    return (
        (kinds & {"vocab", "experts"})
        | ({"heads"} if heads else set())
        | ({"width"} if kinds - heads - {"vocab", "experts"} else set())
    )


def _full_size(source: ModelSource, graph: OpGraph, strategy: Strategy, length: int) -> dict[str, Any]:
    """The full-size tier as JSON."""
    d = strategy.degrees
    sequences = d.sequences * d.num_microbatches
    report = run_full_size(source, graph, strategy, sequences=sequences, length=length)
    return {"name": "full_size", **report.to_dict(), "reason": report.skipped}


def op_times(plan: Plan, strategy: Strategy, device: str) -> dict[str, Any]:
    """Every fused op of one rank, measured beside predicted, as JSON; it proves nothing, so that it always passes."""
    workload = plan.data.workload
    times = time_strategy(
        plan.graph,
        strategy,
        sequences=strategy.degrees.sequences,
        length=workload.tokens_per_sequence,
        context=workload.cached_tokens_per_sequence,
        device=device,
    )
    predicted: dict[tuple[str, str], float] = {}
    if strategy == plan.strategy and strategy.degrees.pp == 1:
        for term in plan.predicted.terms:
            if term.what != "collective":
                key = (term.part, term.label)
                predicted[key] = predicted.get(key, 0.0) + term.seconds
    ops = []
    for t in times:
        step_s = predicted.get((t.block, t.op))
        ops.append({**asdict(t), "predicted_s": None if step_s is None else step_s / t.repeat})
    listed = [c.model_dump(mode="json") for ops_ in plan.data.ops.values() for op in ops_ for c in op.collectives]
    return {
        "name": "op_times",
        "passed": True,
        "device": device,
        "predicted_for": plan.data.cluster.device,
        "ops": ops,
        "collectives": [{**c, "measured_s": None, "reason": "not measured: one device"} for c in listed],
    }


def _numbers_tier(name: str, nproc: int, reports: tuple[ValidationReport, ...]) -> dict[str, Any]:
    """A tier that computes numbers, as JSON; its cases are in the summary."""
    failed = [r for r in reports if not r.passed]
    return {
        "name": name,
        "passed": not failed,
        "nproc": nproc,
        "cases": len(reports),
        "logits_max_rel_err": {
            dtype: _worst([r.logits_max_rel_err for r in reports if r.dtype == dtype])
            for dtype in dict.fromkeys(r.dtype for r in reports)
        },
        "collectives_match": all(r.collectives_match for r in reports),
        "parameter_bytes_match": all(r.parameter_bytes_match for r in reports),
        "difference": f"{failed[0].name}: {failed[0].difference}" if failed else None,
    }


def _asked(
    subject: Plan | Any,
    model: Any,
    fixed: Mapping[str, int],
    pinned: Mapping[str, Choice],
    progress: Callable[[str], None],
    *,
    uneven: bool = False,
) -> tuple[ModelSource, OpGraph | None, Strategy | None]:
    """The model's source, its graph and the strategy asked for; None when only the patterns are."""
    if isinstance(subject, Plan):
        source = _planned_source(subject, model, progress)
        return source, subject.graph, _changed(subject.graph, subject.strategy, fixed, pinned)
    if model is not None:
        raise InvalidInputError("a model goes with a plan; here the model itself is what is validated")
    source = source_of(subject)
    if written_source(source) is None:
        raise UnsupportedModelError(f"{source.name} is only a live module: validate needs a config or factory")
    if not fixed and not pinned:
        return source, None, None
    progress(f"tracing {source.name}")
    graph = graph_of(subject, source)
    degrees = complete_degrees(graph, fixed, uneven=uneven)
    return source, graph, complete_strategy(graph, degrees, pins_for(graph, pinned), uneven=uneven)


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
    degrees = complete_degrees(graph, fixed, uneven=strategy.uneven) if fixed else strategy.degrees
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
