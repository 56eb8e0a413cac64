"""Seconds and memory to run the largest models' plans at full size on a fake group of 64 and of 256 ranks.

Each run is a process of its own: seconds are those of the tier that `autoshard validate` starts with (built on the meta
device, applied and run once per pipeline stage), the peak is of the whole process, imports and tracing included.
``python benchmarks/full_size.py [--repeats 3]``.
"""

import argparse
import multiprocessing
import resource
import statistics
from concurrent.futures import ProcessPoolExecutor

from autoshard import catalogue
from autoshard.sharding import Degrees
from autoshard.sharding.patterns import pattern_strategy
from autoshard.tracing import trace_source
from autoshard.validate import run_full_size

MODELS = ("deepseek-v3", "kimi-k2")
DEGREES = {
    64: Degrees(dp=8, tp=8, ep=64, batch=32),
    256: Degrees(dp=32, tp=8, ep=128, etp=2, batch=128),
}
SECONDS, GIGABYTES = 15, 2
"""What a run may take."""


def run(name: str, ranks: int) -> tuple[bool, float, float]:
    """Whether bytes and collectives were those listed, seconds, and the process's peak in GB."""
    source = catalogue.find(name)
    graph = trace_source(source)
    strategy = pattern_strategy(graph, DEGREES[ranks], "megatron")
    report = run_full_size(source, graph, strategy, sequences=4, length=1)
    return report.passed, report.seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def main() -> None:
    """Print a row for each model and number of ranks, then whether the targets hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    repeats = parser.parse_args().repeats
    print("| model | ranks | as listed | seconds: median (least to most) | peak GB |\n|---|---:|---|---:|---:|")
    kept = True
    for name in MODELS:
        for ranks in DEGREES:
            found = []
            for _ in range(repeats):
                with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
                    found.append(pool.submit(run, name, ranks).result())
            passed, seconds, peak = all(f[0] for f in found), [f[1] for f in found], max(f[2] for f in found)
            middle = statistics.median(seconds)
            kept = kept and passed and middle < SECONDS and peak < GIGABYTES
            print(
                f"| {name} | {ranks} | {'yes' if passed else 'NO'} "
                f"| {middle:.1f} ({min(seconds):.1f} to {max(seconds):.1f}) | {peak:.2f} |",
                flush=True,
            )
    print(f"targets ({SECONDS} s, {GIGABYTES} GB): {'held' if kept else 'MISSED'}")


if __name__ == "__main__":
    main()
