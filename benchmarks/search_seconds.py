"""CPU seconds of the cost tables, of `exact` and of `rl`, on 64 and on 24,576 GPUs.

``python benchmarks/search_seconds.py [MODEL ...] [--repeats 3] [--page FILE]``: catalogue names, by default all; decode
at 16k context. Prints a table in Markdown, medians with least and most of the repeats; `rl` has another seed in each.
CPU seconds of one thread, which others on the machine disturb less than the clock. With ``--page`` the table is written
as a page as well (`docs/results/search-seconds.md`).
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from autoshard.api.solve import make_simulator, regret_to, run_search
from autoshard.catalogue import entries, find
from autoshard.hardware import parse_cluster
from autoshard.search.exact import ExactSearch
from autoshard.tracing import trace_source
from autoshard.workload import Workload

CLUSTERS = ("H100x64", "H100x24576")
CONTEXT, BUDGET = 16384, 4000
TARGETS = {"exact": 5.0, "rl": 10.0}
"""Seconds that no median may exceed."""
Found = TypeVar("Found")

HEAD = f"""# Seconds of a search

Written by `python -m benchmarks.search_seconds --page docs/results/search-seconds.md`: do not edit. CPU seconds of one
thread, decode at {CONTEXT:,}: median (least to most) of the repeats; `rl` has {BUDGET:,} calls and another seed in
each. Tables are built once for a model, a cluster and a workload, whatever searches follow.

"""


def timed(call: Callable[[], Found]) -> tuple[float, Found]:
    """CPU seconds of a call, and what it returned."""
    start = time.process_time()
    found = call()
    return time.process_time() - start, found


def spread(seconds: Sequence[float]) -> str:
    """Median (least to most)."""
    return f"{statistics.median(seconds):.2f} ({min(seconds):.2f} to {max(seconds):.2f})"


def rows(models: Sequence[str], repeats: int) -> Iterator[str]:
    """The table as it grows, then whether the targets hold."""
    yield "| model | cluster | degree points | tables s | exact s | rl s | rl regret % |"
    yield "|---|---|---:|---:|---:|---:|---:|"
    medians: dict[str, dict[str, float]] = {name: {} for name in TARGETS}
    for name in models:
        graph = trace_source(find(name))
        for where in CLUSTERS:
            cluster = parse_cluster(where)
            tables_s, simulator = timed(partial(make_simulator, graph, cluster, Workload(context=CONTEXT)))
            exact = [timed(ExactSearch(simulator).run) for _ in range(repeats)]
            optimum = exact[0][1].tokens_per_s / cluster.num_devices
            agent = [timed(partial(run_search, simulator, "rl", budget=BUDGET, seed=seed)) for seed in range(repeats)]
            regrets = [100 * regret_to(optimum, result.throughput) for _, (_, result) in agent]
            taken = {"exact": [s for s, _ in exact], "rl": [s for s, _ in agent]}
            for method, seconds in taken.items():
                medians[method][f"{name} on {where}"] = statistics.median(seconds)
            yield (
                f"| {name} | {where} | {len(simulator.points):,} | {tables_s:.2f} | {spread(taken['exact'])} |"
                f" {spread(taken['rl'])} | {statistics.median(regrets):.3f} ({max(regrets):.3f}) |"
            )
    yield ""
    for method, found in medians.items():
        slowest = max(found, key=lambda place: found[place])
        over = [place for place, seconds in found.items() if seconds > TARGETS[method]]
        yield (
            f"- `{method}`: slowest median {found[slowest]:.2f} s ({slowest}); above {TARGETS[method]:g} s:"
            f" {', '.join(over) or 'none'} of {len(found)}."
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=[])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--page", type=Path, help="write the table there too")
    given = parser.parse_args()
    lines = []
    for line in rows(given.models or [entry.name for entry in entries()], given.repeats):
        print(line, flush=True)
        lines.append(line)
    if given.page is not None:
        given.page.parent.mkdir(parents=True, exist_ok=True)
        given.page.write_text(HEAD + "\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
