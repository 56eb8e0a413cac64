"""How many strategies a second one core predicts: ``python benchmarks/strategies_per_second.py [MODEL] [CLUSTER]``.

Uniformly drawn strategies over all degree points, in batches of 4,000 (the default search budget); building the tables
is timed apart.
"""

import sys
import time

import numpy as np

from autoshard.api.models import graph_of, source_of
from autoshard.hardware import parse_cluster
from autoshard.simulator import Simulator
from autoshard.workload import Workload

BATCH, REPEATS, FLOOR = 4000, 20, 50_000


def main() -> None:
    model = sys.argv[1] if len(sys.argv) > 1 else "mixtral-8x7b"
    cluster = sys.argv[2] if len(sys.argv) > 2 else "H100x64"
    graph = graph_of(model, source_of(model))
    start = time.process_time()
    simulator = Simulator(graph, parse_cluster(cluster), Workload(context=16384, tpot_ms=20))
    built_s = time.process_time() - start
    rng = np.random.default_rng(0)
    point = rng.integers(len(simulator.points), size=BATCH)
    dims = np.stack([rng.integers(len(v.choices), size=BATCH) for v in simulator.variables], 1)
    simulator.evaluate(point, dims)
    start = time.process_time()
    for _ in range(REPEATS):
        simulator.evaluate(point, dims)
    rate = BATCH * REPEATS / (time.process_time() - start)
    print(f"{model} on {cluster}: {rate:,.0f} strategies/s per core (floor {FLOOR:,}); tables built in {built_s:.2f} s")


if __name__ == "__main__":
    main()
