"""Megatron's sharding with searched degrees: its fixed choice per op at every legal point of the degrees.

All residual layouts are tried (replicated, hidden dim sharded, tokens split), tokens are gathered for their experts and
exchanged, and all are counted.

Exhaustive where the budget covers all points, so it needs no heuristic and no seed. Its calls are counted like any
other search's.
"""

from autoshard.search.protocol import Problem
from autoshard.search.result import Recorder, SearchResult

CHUNK = 4096
"""Points per evaluation, which bounds the simulator's memory on clusters with very many degree points."""


def search(problem: Problem, *, seed: int) -> SearchResult:
    """Evaluate Megatron's choices at every degree point; the result's note says if the budget cut them off."""
    recorder = Recorder(problem)
    points = problem.megatron_points()
    num_affordable = min(len(points), recorder.calls_left)
    for start in range(0, num_affordable, CHUNK):
        recorder.evaluate(points[start : start + CHUNK])
    cut = num_affordable < len(points)
    note = f"budget covers the first {num_affordable} of {len(points)} strategies" if cut else ""
    return recorder.result("megatron", seed, note)
