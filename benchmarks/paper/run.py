"""Runs the study and keeps every run in a file of JSON lines; what is there already is not run again.

``python -m benchmarks.paper.run [--set subset|full|catalogue] [--seeds 10] [--methods rl,anneal] [--match TEXT]
[--jobs 2] [--out build/paper.jsonl]``. Each line is one run: its task (point, method or variant, seed), best rate,
calls, seconds, its improvements as (call, rate), the degrees and choices found, and what it depends on
(`benchmarks.paper.identity`): runs whose prices or code have changed since are run again. ``cpu_s`` are seconds of its
process alone, ``seconds`` of the clock, on whatever else ran beside it. Killed and started again it goes on: lines are
written task by task, and one that was cut off is dropped.
"""

import argparse
import itertools
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from autoshard.api.build_plan import degrees_dict
from autoshard.api.compare import SEEDLESS
from autoshard.api.solve import regret_to, run_search
from autoshard.errors import AutoshardError
from autoshard.search.exact import ExactSearch
from autoshard.search.problem import ShardingProblem
from autoshard.search.result import SearchResult
from autoshard.search.rl import search as search_rl
from autoshard.search.state import problem_hash
from autoshard.simulator import Simulator
from benchmarks.paper import identity, studies
from benchmarks.paper.points import ABLATED, BUDGET, METHODS, SETS, VARIANTS, Point

OUT = Path("build/paper.jsonl")
SEEDS = {"method": 10, "variant": 4}
"""Seeds of each kind of task that has them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Seeds of a method, a variant or the collectives on a point."""

    point: Point
    kind: str
    name: str
    seeds: tuple[int, ...]


@lru_cache(maxsize=1)
def _simulator(name: str) -> tuple[Simulator, str, float, float]:
    """The tables of a point, their hash, its optimum (tokens/s/GPU) and the CPU seconds that exact took."""
    simulator = identity.simulator_of(next(p for p in itertools.chain(*SETS.values()) if p.name == name))
    start = time.process_time()
    optimum = ExactSearch(simulator).run().tokens_per_s / simulator.cluster.num_devices
    seconds = time.process_time() - start
    return simulator, problem_hash(simulator)[: identity.DIGITS], optimum, seconds


def run_task(task: Task) -> list[dict[str, Any]]:
    """Every seed of a task, a line each."""
    point = task.point
    line = {"point": point.name, "kind": task.kind, "name": task.name}
    line |= {"code": identity.code(task.kind, task.name), "at": identity.now(), **identity.origin()}
    try:
        simulator, cost_model, optimum, exact_s = _simulator(point.name)
    except AutoshardError as error:
        return [{**line, "seed": s, "cost_model": identity.REFUSED, "refused": str(error)} for s in task.seeds]
    line["cost_model"] = cost_model
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
                **_strategy(problem, result),
            }
        )
    return lines


def _run(simulator: Simulator, kind: str, name: str, seed: int) -> tuple[ShardingProblem, SearchResult]:
    if kind == "method":
        return run_search(simulator, name, budget=BUDGET, seed=seed)
    problem = ShardingProblem(simulator, budget=BUDGET)
    return problem, search_rl(problem, seed=seed, config=VARIANTS[name], name=name)


def _strategy(problem: ShardingProblem, result: SearchResult) -> dict[str, Any]:
    """Degrees and choices of the best strategy, None where there is none."""
    if result.best is None:
        return {"degrees": None, "choices": None}
    point = int(problem.points_of(np.array([result.best], dtype=np.int64))[0])
    dims = tuple(int(o) for o in result.best[problem.num_degree_components :])
    found = problem.sim.strategy(point, dims)
    return {"degrees": degrees_dict(found.degrees), "choices": dict(found.choices)}


def tasks(points: Sequence[Point], methods: Sequence[str], seeds: int | None, *, studied: bool) -> Iterator[Task]:
    """What is to be run, so that tasks of a point follow each other; variants and the like where ``studied``."""
    for point in points:
        alone = {"gain": ("optimum",), "collective": ("both",)} if studied else {}
        variants = tuple(VARIANTS) if studied and point.name in ABLATED else ()
        for kind, names in {"method": tuple(methods), **alone, "variant": variants}.items():
            for name in names:
                number = 1 if name in SEEDLESS or kind in alone else seeds or SEEDS[kind]
                yield Task(point=point, kind=kind, name=name, seeds=tuple(range(number)))


def missing(wanted: Iterable[Task], lines: Sequence[dict[str, Any]], costs: Mapping[str, str]) -> Iterator[Task]:
    """Tasks with the seeds that have no line yet, or one of other prices or code (``costs``: hashes by point)."""
    done = {identity.key(line) for line in identity.sort_out(lines, costs).kept}
    for task in wanted:
        left = tuple(s for s in task.seeds if (task.point.name, task.kind, task.name, s) not in done)
        if left:
            yield replace(task, seeds=left)


def read(path: Path) -> list[dict[str, Any]]:
    """All whole lines of a results file; none if there is no file."""
    return [json.loads(line) for line in _whole(path).splitlines()] if path.exists() else []


def _whole(path: Path) -> bytes:
    """A file but for a last line that was cut off while it was written."""
    data = path.read_bytes()
    return data[: data.rfind(b"\n") + 1]


def run(wanted: Iterable[Task], out: Path, jobs: int) -> None:
    """Run what the file does not have, and add it."""
    wanted, lines = list(wanted), read(out)
    ran = {line["point"] for line in lines}
    costs = identity.cost_models({t.point.name: t.point for t in wanted if t.point.name in ran}.values(), jobs)
    todo = list(missing(wanted, lines, costs))
    out.parent.mkdir(parents=True, exist_ok=True)
    if out.exists():
        os.truncate(out, len(_whole(out)))
    with out.open("a") as file:
        for number, (task, found) in enumerate(_results(todo, jobs), 1):
            file.writelines(json.dumps(line) + "\n" for line in found)
            file.flush()
            print(f"{number}/{len(todo)} {task.point.name}: {task.name}", flush=True)


def main() -> None:
    """Run what is missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--set", choices=tuple(SETS), default="subset")
    parser.add_argument("--match", default="", help="only points whose name has this text")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--seeds", type=int, default=None, help="of every task; by default 10 a method, 4 a variant")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args()
    points = [p for p in SETS[arguments.set] if arguments.match in p.name]
    wanted = tasks(points, arguments.methods.split(","), arguments.seeds, studied=arguments.set != "catalogue")
    run(wanted, arguments.out, arguments.jobs)


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
