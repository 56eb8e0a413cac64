"""Tracing time against depth: 61 layers of DeepSeek-V3 against 6, CPU seconds, medians of interleaved runs."""

import gc
import os
import statistics
import time

from autoshard_models import CATALOGUE

from autoshard.tracing import resolve, trace_source

os.environ["AUTOSHARD_CACHE"] = "off"

RUNS = 9


def seconds(layers: int) -> float:
    """CPU seconds to build and trace a DeepSeek-V3 of ``layers`` layers."""
    source = resolve({**CATALOGUE["deepseek-v3"].config, "num_hidden_layers": layers})
    gc.collect()  # what an earlier run left behind is not this one's time
    start = time.process_time()
    trace_source(source)
    return time.process_time() - start


def main() -> None:
    """Print both times and their ratio; the target is at most 1.3."""
    seconds(6)  # imports
    times = {61: [], 6: []}  # type: dict[int, list[float]]
    for _ in range(RUNS):
        for layers, found in times.items():
            found.append(seconds(layers))
    deep, shallow = (statistics.median(found) for found in times.values())
    spread = ", ".join(f"{layers} layers {min(found):.2f} to {max(found):.2f}" for layers, found in times.items())
    print(f"deepseek-v3: 61 layers {deep:.2f} s, 6 layers {shallow:.2f} s, ratio {deep / shallow:.2f} (target 1.3)")
    print(f"  spread of {RUNS} runs: {spread} s")


if __name__ == "__main__":
    main()
