"""Runs the study and keeps every run in a file of JSON lines; what is there already is not run again.

``python -m benchmarks.paper.run [--set subset|full|catalogue] [--seeds 10] [--methods rl,anneal] [--match TEXT]
[--jobs 2] [--out build/paper.jsonl]``. Each line is one run: its task (point, method or variant, seed), best rate,
calls, seconds, its improvements as (call, rate), and the degrees found. ``cpu_s`` are seconds of its process alone,
``seconds`` of the clock, on whatever else ran beside it.
"""

import argparse
import itertools
import json
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from autoshard.api.build_plan import degrees_dict
from autoshard.api.compare import SEEDLESS
from autoshard.api.solve import make_simulator, regret_to, run_search
from autoshard.catalogue import find
from autoshard.errors import AutoshardError
from autoshard.hardware import parse_cluster
from autoshard.ir import OpGraph
from autoshard.search.exact import ExactSearch
from autoshard.search.problem import ShardingProblem
from autoshard.search.result import SearchResult
from autoshard.search.rl import search as search_rl
from autoshard.simulator import Simulator
from autoshard.tracing import trace_source
from benchmarks.paper import studies
from benchmarks.paper.points import ABLATED, BUDGET, METHODS, SETS, VARIANTS, Point

OUT = Path("build/paper.jsonl")
FAMILIES = {"method": 10, "variant": 5}
"""Seeds of each kind of task that has them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Seeds of a method, a variant or the collectives on a point."""

    point: Point
    kind: str
    name: str
    seeds: tuple[int, ...]


@lru_cache(maxsize=1)
def _graph(model: str) -> OpGraph:
    return trace_source(find(model))


@lru_cache(maxsize=1)
def _simulator(name: str) -> tuple[Simulator, float, float]:
    """The tables of a point, its optimum (tokens/s/GPU) and the CPU seconds that exact took."""
    point = next(p for p in itertools.chain(*SETS.values()) if p.name == name)
    simulator = make_simulator(_graph(point.model), parse_cluster(point.cluster), point.workload)
    start = time.process_time()
    optimum = ExactSearch(simulator).run().tokens_per_s / simulator.cluster.num_devices
    return simulator, optimum, time.process_time() - start


def run_task(task: Task) -> list[dict[str, Any]]:
    """Every seed of a task, a line each."""
    point = task.point
    line = {"point": point.name, "kind": task.kind, "name": task.name}
    try:
        simulator, optimum, exact_s = _simulator(point.name)
    except AutoshardError as error:
        return [{**line, "seed": seed, "refused": str(error)} for seed in task.seeds]
    if task.kind == "collective":
        return [{**line, "seed": 0, "forms": list(studies.collectives(simulator))}]
    if task.kind == "gain":
        return [{**line, "seed": 0, **studies.gain(simulator)}]
    lines = []
    for seed in task.seeds:
        start, cpu = time.perf_counter(), time.process_time()
        problem, result = _run(simulator, task.kind, task.name, seed)
        seconds, cpu_s = time.perf_counter() - start, time.process_time() - cpu
        lines.append(
            {
                **line,
                "seed": seed,
                "rate": result.throughput,
                "optimum": optimum,
                "exact_s": round(exact_s, 3),
                "regret": regret_to(optimum, result.throughput),
                "calls": problem.calls,
                "seconds": round(seconds, 3),
                "cpu_s": round(cpu_s, 3),
                "history": [list(h) for h in result.history],
                "degrees": _degrees(problem, result),
            }
        )
    return lines


def _run(simulator: Simulator, kind: str, name: str, seed: int) -> tuple[ShardingProblem, SearchResult]:
    if kind == "method":
        return run_search(simulator, name, budget=BUDGET, seed=seed)
    problem = ShardingProblem(simulator, budget=BUDGET)
    return problem, search_rl(problem, seed=seed, config=VARIANTS[name], name=name)


def _degrees(problem: ShardingProblem, result: SearchResult) -> dict[str, int] | None:
    if result.best is None:
        return None
    point = int(problem.points_of(np.array([result.best], dtype=np.int64))[0])
    return degrees_dict(problem.sim.points.degrees(point))


def tasks(points: Sequence[Point], methods: Sequence[str], seeds: int | None, *, studied: bool) -> Iterator[Task]:
    """What is to be run, so that tasks of a point follow each other; variants and the like where ``studied``."""
    for point in points:
        alone = {"gain": ("optimum",), "collective": ("both",)} if studied else {}
        variants = tuple(VARIANTS) if studied and point.name in ABLATED else ()
        for kind, names in {"method": tuple(methods), **alone, "variant": variants}.items():
            for name in names:
                number = 1 if name in SEEDLESS or kind in alone else seeds or FAMILIES[kind]
                yield Task(point=point, kind=kind, name=name, seeds=tuple(range(number)))


def missing(wanted: Iterable[Task], lines: Sequence[dict[str, Any]]) -> Iterator[Task]:
    """Tasks with the seeds that have no line yet."""
    done = {(line["point"], line["kind"], line["name"], line["seed"]) for line in lines}
    for task in wanted:
        left = tuple(s for s in task.seeds if (task.point.name, task.kind, task.name, s) not in done)
        if left:
            yield replace(task, seeds=left)


def read(path: Path) -> list[dict[str, Any]]:
    """All lines of a results file; none if there is no file."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def main() -> None:
    """Run what is missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--set", choices=tuple(SETS), default="subset")
    parser.add_argument("--match", default="", help="only points whose name has this text")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--seeds", type=int, default=None, help="of every task; by default 10 a method, 5 a variant")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args()
    points = [p for p in SETS[arguments.set] if arguments.match in p.name]
    wanted = tasks(points, arguments.methods.split(","), arguments.seeds, studied=arguments.set != "catalogue")
    todo = list(missing(wanted, read(arguments.out)))
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    with arguments.out.open("a") as out:
        for number, (task, lines) in enumerate(_results(todo, arguments.jobs), 1):
            out.writelines(json.dumps(line) + "\n" for line in lines)
            out.flush()
            print(f"{number}/{len(todo)} {task.point.name}: {task.name}", flush=True)


def _results(todo: Sequence[Task], jobs: int) -> Iterator[tuple[Task, list[dict[str, Any]]]]:
    """Every task with its lines, as they come."""
    if jobs == 1:
        yield from ((task, run_task(task)) for task in todo)
        return
    with ProcessPoolExecutor(jobs) as pool:
        futures = {pool.submit(run_task, task): task for task in todo}
        for future in as_completed(futures):
            yield futures[future], future.result()


if __name__ == "__main__":
    main()
