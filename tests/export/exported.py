"""Standalone files on simulated ranks: the hook of a case in which the exported file does what `apply` would do."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from autoshard.api.build_plan import build_plan, degrees_dict
from autoshard.api.solve import make_simulator, solve
from autoshard.export import TARGETS
from autoshard.hardware import parse_cluster
from autoshard.ir import OpGraph
from autoshard.sharding import Strategy
from autoshard.validate import worker
from autoshard.workload import Workload

_MADE: dict[tuple[int, Strategy], dict[str, Any]] = {}
_LOCK = threading.Lock()


def file_of(graph: OpGraph, strategy: Strategy) -> str:
    """The text of the file for exactly this strategy, whatever its batch."""
    assert TARGETS["dtensor"].reasons(graph, strategy) == ()
    d = strategy.degrees
    fixed = {k: v for k, v in degrees_dict(d).items() if k not in ("batch", "replicas")}
    cluster = parse_cluster(f"H100x{d.num_devices}")
    simulator = make_simulator(graph, cluster, Workload(), fixed=fixed, pinned=dict(strategy.choices))
    (file,) = TARGETS["dtensor"].write(build_plan(solve(simulator, algorithm="exact"), None)).files
    return file.text


def applied(model: nn.Module, graph: OpGraph, strategy: Strategy, mesh: Any) -> nn.Module:  # noqa: ARG001
    """The model sharded by the file, on the file's own mesh."""
    with _LOCK:  # one rank writes the file, all run it
        key = (id(graph), strategy)
        if key not in _MADE:
            _MADE[key] = {"__name__": "exported"}
            exec(compile(file_of(graph, strategy), "sharded_model.py", "exec"), _MADE[key])
    made = _MADE[key]
    found: nn.Module = made["apply"](model, made["device_mesh"]("cpu"))
    return found


@contextmanager
def in_place_of_apply() -> Iterator[None]:
    """Within it ranks shard their models by exported files."""
    before, worker.apply = worker.apply, applied  # type: ignore[assignment]
    try:
        yield
    finally:
        worker.apply = before
        _MADE.clear()
