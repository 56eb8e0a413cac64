"""CPU seconds of the cost tables, of `exact` and of `rl`, on 64 and on 24,576 GPUs.

Usage: ``python benchmarks/search_seconds.py [MODEL ...]`` (catalogue names, by default all), decode at 16k context. Of
three runs the median; `rl` with seeds 0, 1 and 2. CPU seconds of one thread, which others on the machine disturb less.
"""

import statistics
import sys
import time
from collections.abc import Callable
from typing import TypeVar

from autoshard.api.solve import make_simulator, regret_to, run_search
from autoshard.catalogue import entries, find
from autoshard.hardware import parse_cluster
from autoshard.search.exact import ExactSearch
from autoshard.tracing import trace_source
from autoshard.workload import Workload

CLUSTERS = ("H100x64", "H100x24576")
REPEATS = 3
Found = TypeVar("Found")


def timed(call: Callable[[], Found]) -> tuple[float, Found]:
    """CPU seconds of a call, and what it returned."""
    start = time.process_time()
    found = call()
    return time.process_time() - start, found


def main(models: list[str]) -> None:
    print(f"{'model':24} {'cluster':12} {'points':>8} {'tables s':>9} {'exact s':>8} {'rl s':>6} {'rl regret %':>12}")
    for name in models:
        graph = trace_source(find(name))
        for where in CLUSTERS:
            cluster = parse_cluster(where)
            tables_s, simulator = timed(lambda: make_simulator(graph, cluster, Workload(context=16384)))  # noqa: B023
            exact = [timed(ExactSearch(simulator).run) for _ in range(REPEATS)]
            optimum = exact[0][1].tokens_per_s / cluster.num_devices
            agent = [
                timed(lambda: run_search(simulator, "rl", budget=4000, seed=seed)[1])  # noqa: B023
                for seed in range(REPEATS)
            ]
            regrets = [regret_to(optimum, result.throughput) for _, result in agent]
            print(
                f"{name:24} {where:12} {len(simulator.points):8,} {tables_s:9.2f}"
                f" {statistics.median(s for s, _ in exact):8.2f} {statistics.median(s for s, _ in agent):6.2f}"
                f" {100 * statistics.median(regrets):12.3f}",
                flush=True,
            )


if __name__ == "__main__":
    main(sys.argv[1:] or [entry.name for entry in entries()])
