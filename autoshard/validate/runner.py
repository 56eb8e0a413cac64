"""Validation: derive what must happen, start the ranks, compare.

For every case and dtype the expected collectives and parameter bytes are derived first, by the torch-free core, from
the graph and the strategy alone. Then one launch of real processes runs all cases. Compared are logits (against the
unsharded model on the same rank), the multiset of collectives of every pass on every rank (kind, group, bytes, count)
and the bytes of parameters on every rank.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from autoshard.errors import InvalidInputError
from autoshard.ir import OpGraph
from autoshard.sharding import Degrees, mesh_of
from autoshard.validate.expectation import Expectation, Traffic, axis_ranks, expect
from autoshard.validate.job import Case, Job, ModelJob
from autoshard.validate.joined import join, world_size
from autoshard.validate.launch import launch
from autoshard.validate.report import TOLERANCE, ValidationReport
from autoshard.validate.routed import Listed, routed_traffic
from autoshard.validate.simulate import simulate


def validate(
    models: Sequence[ModelJob],
    *,
    nproc: int = 4,
    dtypes: Sequence[str] = ("float32", "float64"),
    device: str = "cpu",
    timeout_s: float = 120.0,
    python_path: Sequence[Path] = (),
    simulated: bool = False,
) -> tuple[ValidationReport, ...]:
    """Run every case of every model in every dtype on ``nproc`` ranks, in one launch; a report each, in that order.

    ``simulated`` ranks are threads of this process; otherwise they are processes, over gloo or nccl: started here, or,
    in a torchrun job, that job's, each of which must call this alike.

    Raises:
        InvalidInputError: when a case needs another number of ranks, or sequences do not spread over its dp.
        LaunchError: when ranks die or time is over.
    """
    for model in models:
        for case in model.cases:
            d = case.strategy.degrees
            if d.num_devices != nproc:
                raise InvalidInputError(f"case {case.name} needs {d.num_devices} ranks, not {nproc}")
            if model.sequences % d.dp:
                raise InvalidInputError(f"case {case.name}: {model.sequences} sequences over dp={d.dp}")
    work = [(m, dtype, case) for m in models for dtype in m.dtypes or dtypes for case in m.cases]
    expected = [
        [
            expect(m.graph, c.strategy, sequences=m.sequences, lengths=m.lengths, dtype=dtype, stage=stage)
            for stage in range(c.strategy.degrees.pp)
        ]
        for m, dtype, c in work
    ]
    job = Job(models=tuple(models), dtypes=tuple(dtypes), device=device, timeout_s=timeout_s)
    if simulated:
        by_rank = simulate(job, nproc)
    else:
        by_rank = launch(job, nproc, python_path=python_path) if world_size() is None else join(job)
    return tuple(
        replace(_judge(m, dtype, case, want, [rank[i] for rank in by_rank], device), simulated=simulated)
        for i, ((m, dtype, case), want) in enumerate(zip(work, expected, strict=True))
    )


def _judge(
    model: ModelJob, dtype: str, case: Case, stages: Sequence[Expectation], ranks: Sequence[dict[str, Any]], device: str
) -> ValidationReport:
    """Compare what the ranks saw with what was expected of their stages."""
    differences: list[str] = []
    worst = 0.0
    observed: dict[int, tuple[Traffic, ...]] = {}
    traffic_ok = bytes_ok = True
    for rank, result in enumerate(ranks):
        stage = rank // case.strategy.degrees.group
        want = stages[stage]
        if "exception" in result:
            worst, traffic_ok, bytes_ok = math.inf, False, False
            differences.append(f"rank {rank} raised {result['exception']}")
            continue
        for step, error in enumerate(result["errors"]):
            worst = max(worst, error if error == error else math.inf)
            if not error <= TOLERANCE[dtype]:
                where = "prompt" if step == 0 else f"decode step {step}"
                differences.append(f"rank {rank}: logits of the {where} differ by {error:.2e} > {TOLERANCE[dtype]:.0e}")
        if stage == len(stages) - 1 and len(result["errors"]) != len(model.lengths):
            worst = math.inf
            differences.append(f"rank {rank} made {len(result['errors'])} of {len(model.lengths)} logits")
        routed = routed_traffic(
            model.graph,
            case.strategy,
            result.get("routing", ()),
            sequences=model.sequences,
            lengths=model.lengths,
            dtype=dtype,
            rank=rank,
        )
        seen = named_traffic(model.graph, case.strategy.degrees, want, rank, result["traffic"], routed)
        if stage not in observed or (traffic_ok and seen != want.traffic):
            observed[stage] = seen
        if seen != want.traffic:
            traffic_ok = False
            differences.append(f"rank {rank}: {first_difference(want.traffic, seen)}")
        if result["parameter_bytes"] != want.parameter_bytes:
            bytes_ok = False
            differences.append(
                f"rank {rank} holds {result['parameter_bytes']} bytes of parameters, expected {want.parameter_bytes}"
            )
    d = case.strategy.degrees
    return ValidationReport(
        name=case.name,
        nproc=len(ranks),
        device=device,
        dtype=dtype,
        degrees={n: getattr(d, n) for n in ("pp", "dp", "tp", "ep", "etp")},
        logits_max_rel_err=worst,
        tolerance=TOLERANCE[dtype],
        collectives_match=traffic_ok,
        expected=tuple(t for want in stages for t in want.traffic),
        observed=tuple(t for _, traffic in sorted(observed.items()) for t in traffic),
        parameter_bytes=max(want.parameter_bytes for want in stages),
        parameter_bytes_match=bytes_ok,
        difference=_cause(differences),
        notes=case.notes,
    )


def _cause(differences: Sequence[str]) -> str | None:
    """The first difference that does not only say that another rank is gone."""
    return next(
        (d for d in differences if "Timed out" not in d and "closed by peer" not in d), next(iter(differences), None)
    )


def named_traffic(
    graph: OpGraph,
    degrees: Degrees,
    want: Expectation,
    rank: int,
    seen: Sequence[Any],
    routed: Mapping[Listed, Counter[tuple[int, int]]],
) -> tuple[Traffic, ...]:
    """Traffic as logged, under the names of the axes and the bytes of the plan's list.

    What depends on routing counts as what the list has it as where both directions have exactly the bytes that the
    unsharded model's routing gives this rank (``routed``).

    A log knows ranks, not axes, and two axes may have the same ranks: what was seen is first given to what was
    expected of those ranks; the rest goes by the first axis with these ranks, or by the ranks.
    """
    axes = [axis for axis, view in mesh_of(graph, degrees).views if view]
    ranks_of = {str(axis): axis_ranks(graph, degrees, axis, rank) for axis in axes}
    stage = rank // degrees.group
    if stage < degrees.pp - 1:
        ranks_of["pp"] = axis_ranks(graph, degrees, "pp", rank)
    left = Counter({(step, kind, tuple(sorted(ranks)), out, back): n for step, kind, ranks, out, back, n in seen})
    found: Counter[tuple[int, str, str, int, int]] = Counter()
    names: dict[Any, str] = {}
    for t in want.traffic:
        sizes = Counter(routed.get((t.step, t.kind, t.axis, t.num_bytes), ()))
        sizes[t.num_bytes, t.num_bytes] += t.count - sizes.total()
        for (out, back), count in sizes.items():
            key = (t.step, t.kind, ranks_of[t.axis], out, back)
            names.setdefault(key, t.axis)
            taken = min(count, left[key])
            left[key] -= taken
            found[t.step, t.kind, t.axis, t.group_size, t.num_bytes] += taken
    for key, count in left.items():
        step, kind, ranks, num_bytes, _ = key
        axis = names.get(key) or next((a for a, r in ranks_of.items() if r == ranks), f"ranks {ranks}")
        found[step, kind, axis, len(ranks), num_bytes] += count
    return tuple(sorted(Traffic(*key, count, stage) for key, count in found.items() if count))


def first_difference(want: Sequence[Traffic], seen: Sequence[Traffic]) -> str:
    """The first entry that is on one side only, as words."""
    missing = [t for t in want if t not in seen]
    extra = [t for t in seen if t not in want]

    def words(t: Traffic) -> str:
        where = "prompt" if t.step == 0 else f"decode step {t.step}"
        at = f", stage {t.stage}" if t.stage else ""
        return f"{t.count} x {t.kind} over {t.axis} ({t.group_size} ranks) of {t.num_bytes} bytes in the {where}{at}"

    parts = [f"expected {words(missing[0])}"] if missing else []
    parts += [f"saw {words(extra[0])}"] if extra else []
    return ", ".join(parts)
