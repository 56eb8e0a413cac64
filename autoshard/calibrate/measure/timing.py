"""Seconds of a call: CUDA graphs and events on a GPU, the clock on a CPU."""

import statistics
import time
from collections.abc import Callable

import torch

_REPEATS = 5


def seconds_of(call: Callable[[], object], device: torch.device, *, inner: int = 5) -> float:
    """Median seconds of ``call``, after warming up.

    On a GPU ``inner`` calls are captured in a CUDA graph and replayed between two events; what cannot be captured is
    launched eagerly. On a CPU each sample is ``inner`` calls.
    """
    for _ in range(2):
        call()
    if device.type == "cuda":
        return _cuda_seconds(call, inner)
    samples = []
    for _ in range(_REPEATS):
        start = time.perf_counter()
        for _ in range(inner):
            call()
        samples.append((time.perf_counter() - start) / inner)
    return statistics.median(samples)


def _cuda_seconds(call: Callable[[], object], inner: int) -> float:
    torch.cuda.synchronize()

    def repeated() -> None:
        for _ in range(inner):
            call()

    run: Callable[[], object] = repeated
    try:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            repeated()
        run = graph.replay
    except RuntimeError:  # not capturable: a library that allocates or waits
        torch.cuda.synchronize()
    run()
    samples: list[float] = []
    for _ in range(_REPEATS):
        start: torch.cuda.Event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        end: torch.cuda.Event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        start.record()
        run()
        end.record()
        end.synchronize()
        samples.append(start.elapsed_time(end) * 1e-3 / inner)
    return statistics.median(samples)
