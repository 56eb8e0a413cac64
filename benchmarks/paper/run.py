"""Runs the study and keeps every run in a file of JSON lines; what is there already is not run again.

``python -m benchmarks.paper.run [--full] [--seeds 10] [--jobs 2] [--out build/paper.jsonl]``. Each line is one run: its
task (point, method or variant, seed), best rate, calls, seconds, its improvements as (call, rate), and the degrees
found. Seconds are of a process beside ``jobs - 1`` others.
"""

import argparse
import json
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from autoshard.api.build_plan import degrees_dict
from autoshard.api.compare import SEEDLESS
from autoshard.api.pins import pins_for
from autoshard.api.solve import make_simulator, regret_to, run_search
from autoshard.catalogue import find
from autoshard.errors import AutoshardError
from autoshard.hardware import parse_cluster
from autoshard.search.exact import ExactSearch
from autoshard.search.problem import ShardingProblem
from autoshard.search.result import SearchResult
from autoshard.search.rl import search as search_rl
from autoshard.simulator import Simulator
from autoshard.tracing import trace_source
from benchmarks.paper.points import ABLATED, BUDGET, FULL, METHODS, SUBSET, VARIANTS, Point

OUT = Path("build/paper.jsonl")
FAMILIES = {"method": 10, "variant": 5, "collective": 1}
"""Seeds of each kind of task."""


@lru_cache(maxsize=2)
def _simulator(point_name: str, full: bool) -> tuple[Simulator, float, float]:
    """The tables of a point, its optimum (tokens/s/GPU) and the seconds that exact took."""
    point = next(p for p in (FULL if full else SUBSET) if p.name == point_name)
    simulator = make_simulator(trace_source(find(point.model)), parse_cluster(point.cluster), point.workload)
    start = time.perf_counter()
    optimum = ExactSearch(simulator).run().tokens_per_s / simulator.cluster.num_devices
    return simulator, optimum, time.perf_counter() - start


def run_task(point: Point, kind: str, name: str, seeds: int, full: bool) -> list[dict[str, Any]]:
    """All seeds of a method or a variant on a point."""
    if kind == "collective":
        return run_collectives(point, full)
    task = {"point": point.name, "kind": kind, "name": name}
    try:
        simulator, optimum, exact_s = _simulator(point.name, full)
    except AutoshardError as error:
        return [{**task, "seed": 0, "refused": str(error)}]
    lines = []
    for seed in range(1 if name in SEEDLESS else seeds):
        start = time.perf_counter()
        problem, result = _run(simulator, kind, name, seed)
        seconds = time.perf_counter() - start
        lines.append(
            {
                **task,
                "seed": seed,
                "rate": result.throughput,
                "optimum": optimum,
                "exact_s": exact_s,
                "regret": regret_to(optimum, result.throughput),
                "calls": result.calls,
                "seconds": seconds,
                "history": [list(h) for h in result.history],
                "degrees": _degrees(problem, result),
            }
        )
    return lines


def run_collectives(point: Point, full: bool) -> list[dict[str, Any]]:
    """The optimum's degrees held, and only the collective behind the experts varied: reduce or gather.

    The second expert matrix is held at 1 (partial sums, added up) and at 0 (outputs sharded, gathered before it and
    behind it); every other choice is free in both.
    """
    try:
        simulator, optimum, _ = _simulator(point.name, full)
    except AutoshardError:
        return []
    best = ExactSearch(simulator).run()
    assert best.point is not None
    degrees = degrees_dict(simulator.points.degrees(best.point))
    lines = []
    for name, choice in (("all_reduce", 1), ("all_gather", 0)):
        line: dict[str, Any] = {"point": point.name, "kind": "collective", "name": name, "seed": 0, "degrees": degrees}
        try:
            held = Simulator(
                simulator.graph,
                simulator.cluster,
                simulator.workload,
                fixed=degrees,
                pinned=pins_for(simulator.graph, {"experts_down": choice}),
            )
            line["rate"] = ExactSearch(held).run().tokens_per_s / held.cluster.num_devices
            line["optimum"] = optimum
        except AutoshardError as error:
            line["refused"] = str(error)
        lines.append(line)
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


def tasks(full: bool) -> Iterator[tuple[Point, str, str]]:
    """(point, kind, name), so that tasks of a point follow each other."""
    for point in FULL if full else SUBSET:
        yield from ((point, "method", name) for name in METHODS)
        yield point, "collective", "both"
        if point.name in ABLATED:
            yield from ((point, "variant", name) for name in VARIANTS)


def read(path: Path) -> list[dict[str, Any]]:
    """All lines of a results file; none if there is no file."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def main() -> None:
    """Run what is missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--seeds", type=int, default=None, help="of every task; by default 10 a method, 5 a variant")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args()
    done = {(line["point"], line["kind"], line["name"]) for line in read(arguments.out)}
    done |= {(point, kind, "both") for point, kind, _ in done if kind == "collective"}
    todo = [t for t in tasks(arguments.full) if (t[0].name, t[1], t[2]) not in done]
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(arguments.jobs) as pool, arguments.out.open("a") as out:
        futures = {
            pool.submit(run_task, point, kind, name, arguments.seeds or FAMILIES[kind], arguments.full): (point, name)
            for point, kind, name in todo
        }
        for number, future in enumerate(as_completed(futures), 1):
            out.writelines(json.dumps(line) + "\n" for line in future.result())
            out.flush()
            point, name = futures[future]
            print(f"{number}/{len(todo)} {point.name}: {name}", flush=True)


if __name__ == "__main__":
    main()
