"""How fast the simulator and the searches are, and how far each search ends from the proven optimum.

Usage: ``python benchmarks/search.py [MODEL ...]`` (catalogue names; by default three of them), on H100x64, decode at
16k context. Every figure is a median over repeats or seeds with its range; ratios are of figures of this run.
"""

import statistics
import sys
import time
from collections.abc import Callable

import numpy as np
from rich.console import Console
from rich.table import Table

from autoshard.api.solve import make_simulator, regret_to, run_search
from autoshard.catalogue import find
from autoshard.hardware import parse_cluster
from autoshard.search.exact import ExactSearch
from autoshard.simulator import Simulator
from autoshard.tracing import trace_source
from autoshard.workload import Workload

MODELS = ("mixtral-8x7b", "qwen3-235b-a22b", "gpt-moe-60b")
SEEDS = range(5)
BATCH = 20_000


def timed(repeats: int, call: Callable[[], object]) -> list[float]:
    """Seconds of each of some calls."""
    found = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        found.append(time.perf_counter() - start)
    return found


def spread(values: list[float], scale: float = 1.0, digits: int = 2) -> str:
    """Median and range."""
    scaled = [v * scale for v in values]
    return f"{statistics.median(scaled):.{digits}f} ({min(scaled):.{digits}f} to {max(scaled):.{digits}f})"


def evaluations(simulator: Simulator) -> Callable[[], object]:
    """One batch of random strategies."""
    rng = np.random.default_rng(0)
    point = rng.integers(0, len(simulator.points), BATCH)
    dims = np.stack([rng.integers(0, len(v.choices), BATCH) for v in simulator.variables], 1)
    return lambda: simulator.evaluate(point, dims)


def main(models: list[str]) -> None:
    console = Console()
    table = Table(
        "model", "strategies/s", "tables s", "exact s", "search", "calls", "s", "regret %", title="H100x64, decode 16k"
    )
    cluster, workload = parse_cluster("H100x64"), Workload(context=16384)
    for name in models:
        graph = trace_source(find(name))
        simulator = make_simulator(graph, cluster, workload)
        rates = [BATCH / s for s in timed(5, evaluations(simulator))]
        tables = timed(3, lambda graph=graph: Simulator(graph, cluster, workload))
        exact = timed(3, lambda simulator=simulator: ExactSearch(simulator).run())
        optimum = ExactSearch(simulator).run().tokens_per_s / cluster.num_devices
        first = [name, spread(rates, 1e-3, 0) + " k", spread(tables), spread(exact)]
        for algorithm in ("rl", "rl-paper", "megatron", "anneal", "mcmc", "walk", "random"):
            seconds, regrets, calls = [], [], []
            for seed in SEEDS:
                start = time.perf_counter()
                _, result = run_search(simulator, algorithm, budget=4000, seed=seed)
                seconds.append(time.perf_counter() - start)
                regrets.append(regret_to(optimum, result.throughput))
                calls.append(result.calls)
            row = [algorithm, f"{statistics.median(calls):.0f}", spread(seconds), spread(regrets, 100)]
            table.add_row(*first, *row)
            first = ["", "", "", ""]
    console.print(table)


if __name__ == "__main__":
    main(sys.argv[1:] or list(MODELS))
