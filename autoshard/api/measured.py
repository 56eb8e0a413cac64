"""Search by measurement: candidates run on real ranks, and what is compared are clocks, not predictions.

Here that is a small model of the same architecture on gloo processes of one machine: it says which strategy is fastest
*there*. The simulator gives only which strategies there are; no predicted time enters, and none is printed.

Measurements are kept in a state file as they come, one line each after a line that says what is measured. A run with
the same settings goes on from them: a strategy that is in the file is not run again, and since the search is
deterministic given its seed and the measurements, it goes the same way.
"""

import json
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from autoshard.api.build_plan import degrees_dict
from autoshard.api.models import graph_of, source_of, written_source
from autoshard.calibrate.measure import has_cuda
from autoshard.errors import InvalidInputError, UnsupportedModelError
from autoshard.hardware import parse_cluster
from autoshard.search.measured import MeasuredProblem
from autoshard.search.problem import IntArray
from autoshard.search.rounds import search as search_rounds
from autoshard.sharding import Strategy
from autoshard.simulator import Simulator, make_points
from autoshard.validate import ModelJob
from autoshard.validate.timed import DTYPE, Measured, time_strategies
from autoshard.workload import Workload

STATE = "autoshard.measured/1"
MOST_RANKS, MOST_BUDGET = 16, 10_000
CONFIRMED = 3
"""Best strategies that are measured once more, with the best of Megatron's."""
MORE = 3
"""How many times as many steps they get."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What is measured: ``sequences`` over all ranks, a prompt of ``context`` tokens, ``repeats`` steps of each."""

    nproc: int = 4
    phase: str = "decode"
    context: int = 32
    sequences: int = 0
    repeats: int = 5
    device: str = "cpu"
    timeout_s: float = 600.0
    full_size: bool = False

    def checked(self) -> "Settings":
        """Themselves, ``sequences`` filled in; raises InvalidInputError with the rule and the value."""
        for name, least, most in (("nproc", 1, MOST_RANKS), ("context", 1, 10**6), ("repeats", 1, 1000)):
            value = getattr(self, name)
            if not least <= value <= most:
                raise InvalidInputError(f"{name}={value} must be from {least} to {most:,}")
        if self.phase not in ("decode", "prefill"):
            raise InvalidInputError(f"cannot measure phase {self.phase!r}: known are decode, prefill")
        if not 0 < self.timeout_s < math.inf:
            raise InvalidInputError(f"timeout_s={self.timeout_s:g} must be a positive number of seconds")
        if self.device not in ("cpu", "cuda") or (self.device == "cuda" and torch.cuda.device_count() < self.nproc):
            gpus = f" ({torch.cuda.device_count()} of them)" if torch.cuda.is_available() else ""
            raise InvalidInputError(
                f"cannot measure {self.nproc} ranks on {self.device!r}: this machine has cpu{has_cuda()}{gpus}"
            )
        sequences = self.sequences or 2 * self.nproc
        if sequences % self.nproc or sequences > 10**5:
            raise InvalidInputError(
                f"sequences={sequences} must be a multiple of nproc={self.nproc}, so that every dp has whole ones; "
                f"{-(-min(sequences, 10**5) // self.nproc) * self.nproc} is"
            )
        return Settings(**{**self._fields(), "sequences": sequences})

    def _fields(self) -> dict[str, Any]:
        return {n: getattr(self, n) for n in self.__dataclass_fields__}

    def header(self, model: str, structure: str) -> dict[str, Any]:
        """What measurements of one state file have in common."""
        return {"state": STATE, "model": model, "structure": structure, "dtype": DTYPE, **self.of_results()}

    def of_results(self) -> dict[str, Any]:
        """All that measurements depend on."""
        return {n: v for n, v in self._fields().items() if n != "timeout_s"}


@dataclass(slots=True)
class _Bench:
    """Measures strategies, or looks them up; ``known`` is by row, in the order they were measured."""

    job: ModelJob
    settings: Settings
    state: Path | None
    progress: Callable[[str], None]
    known: dict[tuple[int, ...], dict[str, Any]] = field(default_factory=dict)
    resumed: int = 0
    launches: int = 0

    def open(self, header: dict[str, Any]) -> None:
        """Read the state file, or begin it."""
        if self.state is None:
            return
        try:
            text = self.state.read_text() if self.state.exists() else ""
            if not text:
                self.state.write_text(json.dumps(header) + "\n")
                return
            whole, end, _ = text.rpartition("\n")
            if len(whole) + len(end) < len(text):  # the last line was cut off while it was written
                self.state.write_text(whole + end)
            first, *lines = [json.loads(line) for line in whole.splitlines()]
            differs = [f"{n}={first[n]!r}, not {v!r}" for n, v in header.items() if first[n] != v]
            self.known = {tuple(int(c) for c in line["row"]): line for line in lines}
            for line in lines:
                if not all(isinstance(s, float) and 0 < s < math.inf for s in line["samples_s"]):
                    raise ValueError("a sample is no time")
                if line["failure"] is None and not line["samples_s"]:
                    raise ValueError("a line has no samples")
        except (ValueError, TypeError, KeyError, RecursionError, OSError) as error:
            raise InvalidInputError(f"{self.state} is no state of a measured search: {error}") from None
        if differs:
            raise InvalidInputError(f"{self.state} holds other measurements: {'; '.join(differs)}; name another file")
        self.resumed = len(self.known)

    def check(self, problem: MeasuredProblem) -> None:
        """Raise InvalidInputError for a known strategy that is none of the problem's."""
        width = len(problem.num_options)
        for row in self.known:
            fits = len(row) == width and all(0 <= c < 2**31 for c in row)
            if not fits or not problem.legal(np.array([row], dtype=np.int64))[0]:
                raise InvalidInputError(
                    f"{self.state} is no state of a measured search: {list(row)} is no legal strategy of this one"
                )

    def measure(self, rows: IntArray, strategies: Sequence[Strategy]) -> list[float]:
        """Tokens/s of strategies, each measured once in its life; 0 where it failed."""
        keys = [tuple(row) for row in rows.tolist()]
        fresh = [i for i, key in enumerate(keys) if key not in self.known]
        for i, found in zip(fresh, self.run([strategies[i] for i in fresh], self.settings.repeats), strict=True):
            line = {"row": list(keys[i]), "samples_s": list(found.samples_s), "failure": found.failure}
            self.known[keys[i]] = line
            if self.state is not None:
                with self.state.open("a") as file:
                    file.write(json.dumps(line) + "\n")
        return [self.rate(self.known[key]["samples_s"]) for key in keys]

    def run(self, strategies: Sequence[Strategy], repeats: int) -> list[Measured]:
        """Measure in one launch; nothing to measure starts nothing."""
        if not strategies:
            return []
        self.launches += 1
        self.progress(f"measuring {len(strategies)} strategies on {self.settings.nproc} ranks")
        return time_strategies(
            self.job,
            strategies,
            nproc=self.settings.nproc,
            repeats=repeats,
            decode=self.settings.phase == "decode",
            device=self.settings.device,
            timeout_s=self.settings.timeout_s,
            python_path=(Path.cwd(),),
        )

    def rate(self, samples_s: Sequence[float]) -> float:
        """Tokens/s at the median step, 0 without samples."""
        tokens = self.settings.sequences * (1 if self.settings.phase == "decode" else self.settings.context)
        return tokens / statistics.median(samples_s) if samples_s else 0.0


def search_measured(
    model: Any,
    settings: Settings,
    *,
    budget: int = 24,
    seed: int = 0,
    state: Path | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Search strategies of ``nproc`` ranks by running them; returns what was measured as JSON data.

    ``best`` and ``megatron`` (the best of Megatron's choices among those measured) are measured once more at the end,
    together and for longer, and compared by that; ``runs`` has every strategy in the order measured.

    Raises:
        InvalidInputError: for a wrong setting, or a state file of other settings.
        UnsupportedModelError: for a model that is only a live module, or cannot be reduced.
        LaunchError: when ranks die or are not done in time.
    """
    settings = settings.checked()
    if not 1 <= budget <= MOST_BUDGET:
        raise InvalidInputError(f"budget={budget} must be from 1 to {MOST_BUDGET:,} strategies")
    if not 0 <= seed < 2**63:
        raise InvalidInputError(f"seed={seed} must be a whole number from 0 to 2^63 - 1")
    n = settings.nproc
    source = source_of(model)
    if written_source(source) is None:
        raise UnsupportedModelError(f"{source.name} is only a live module: a measured search needs a config or factory")
    progress(f"tracing {source.name}")
    if not settings.full_size:
        source = source.reduced(tp=n, ep=n, etp=n, nproc=n)
    graph = graph_of(source.name, source)
    problem_of = _points_of(graph, settings)
    bench = _Bench(
        job=ModelJob(
            source=source.to_dict(), graph=graph, cases=(), sequences=settings.sequences, lengths=(settings.context,)
        ),
        settings=settings,
        state=state,
        progress=progress,
    )
    bench.open({**settings.header(source.name, graph.structural_hash()), "seed": seed})
    problem = MeasuredProblem(problem_of, bench.measure, budget=budget)
    bench.check(problem)
    result = search_rounds(problem, seed=seed)
    return _report(problem, bench, result.calls, seed, budget, source.name)


def _points_of(graph: Any, settings: Settings) -> Simulator:
    """A simulator of the points that take all ranks; only what is legal is read off it."""
    cluster = parse_cluster(f"H100x{settings.nproc}")
    workload = Workload(phase=settings.phase, context=settings.context)  # type: ignore[arg-type]  # checked
    fixed = {"batch": settings.sequences, "replicas": 1}
    points = make_points(graph, cluster, fixed)
    return Simulator(
        graph, cluster, workload, fixed=fixed, points=points.take(points.pp * points.group == settings.nproc)
    )


def _report(problem: MeasuredProblem, bench: _Bench, calls: int, seed: int, budget: int, name: str) -> dict[str, Any]:
    """The best measured once more, and everything that was measured."""
    rows = list(bench.known)
    rates = {row: bench.rate(bench.known[row]["samples_s"]) for row in rows}
    megatron = {tuple(row) for row in problem.megatron_points().tolist()} & set(rows)
    ranked = sorted((row for row in rows if rates[row] > 0), key=lambda row: -rates[row])
    theirs = next((row for row in ranked if row in megatron), None)
    finalists = list(dict.fromkeys([*ranked[:CONFIRMED], *([] if theirs is None else [theirs])]))
    again = bench.run([problem.strategy(row) for row in finalists], MORE * bench.settings.repeats)
    confirmed = sorted(
        (
            {**_described(problem, row), **_seconds(bench, found.samples_s), "megatron": row in megatron}
            for row, found in zip(finalists, again, strict=True)
            if found.samples_s
        ),
        key=lambda one: -one["tokens_per_s"],
    )
    best = confirmed[0] if confirmed else None
    own = next((one for one in confirmed if one["megatron"]), None)
    return {
        "model": name,
        "measured_on": {
            **bench.settings.of_results(),
            "backend": "nccl" if bench.settings.device == "cuda" else "gloo",
            "dtype": DTYPE,
            "threads_per_rank": 1,
        },
        "seed": seed,
        "budget": budget,
        "calls": calls,
        "resumed": bench.resumed,
        "launches": bench.launches,
        "degree_points": len(problem.sim.points),
        "best": best,
        "megatron": own,
        "gain_over_megatron": best["tokens_per_s"] / own["tokens_per_s"] - 1.0 if best and own else None,
        "confirmed": confirmed,
        "runs": [
            {
                **_described(problem, row),
                **_seconds(bench, bench.known[row]["samples_s"]),
                "megatron": row in megatron,
                "failure": bench.known[row]["failure"],
            }
            for row in rows
        ],
    }


def _described(problem: MeasuredProblem, row: tuple[int, ...]) -> dict[str, Any]:
    strategy = problem.strategy(row)
    return {"degrees": degrees_dict(strategy.degrees), "choices": dict(strategy.choices)}


def _seconds(bench: _Bench, samples_s: Sequence[float]) -> dict[str, Any]:
    """Median, least and most seconds of a step, and the rate at the median; None where nothing was measured."""
    if not samples_s:
        return {"step_s": None, "least_s": None, "most_s": None, "tokens_per_s": 0.0}
    found = np.array(samples_s)
    return {
        "step_s": float(np.median(found)),
        "least_s": float(found.min()),
        "most_s": float(found.max()),
        "tokens_per_s": bench.rate(samples_s),
    }
