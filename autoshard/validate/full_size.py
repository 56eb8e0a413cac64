"""A plan at its full size and its true number of ranks, in one process that only pretends: the cheapest proof.

The process group is torch's fake one of the plan's world size, parameters and activations are on the meta device:
shapes and dtypes without values. The whole model is built, sharded and run once as the last rank (whose parts begin
furthest from the start), and what it holds and sends is compared with what the plan lists. No number is computed:
logits are the business of the other tiers.
"""

import os
import threading
import time
import traceback
from dataclasses import asdict, dataclass
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn

from autoshard._torch import READ_VALUE, FakeStore, threads_as_ranks
from autoshard.emit import apply, device_mesh
from autoshard.ir import OpGraph
from autoshard.sharding import Strategy
from autoshard.tracing import ModelSource
from autoshard.tracing.export import traceable_kernels
from autoshard.tracing.routing import BalancedRouting
from autoshard.validate.comm_log import CommLog, collective_name
from autoshard.validate.decoding import new_cache, next_logits
from autoshard.validate.exchange import without_rows
from autoshard.validate.expectation import Traffic, expect
from autoshard.validate.runner import first_difference, named_traffic
from autoshard.validate.worker import parameter_bytes, traffic_of


@dataclass(frozen=True, slots=True, kw_only=True)
class FullSizeReport:
    """What was found at full size.

    ``ranks`` are those that were run, ``tokens`` what each dp rank got in one pass. ``expected`` is the plan's list
    for these tokens and the stages of ``ranks``; ``observed`` what these sent. ``difference`` is the first thing found
    wrong. ``skipped`` says why nothing could be run: the model asks its data, and even unsharded cannot be run without
    any.
    """

    world_size: int
    ranks: tuple[int, ...]
    tokens: int
    logits_shape: tuple[int, ...] | None
    parameter_bytes: int
    parameter_bytes_match: bool
    collectives_match: bool
    expected: tuple[Traffic, ...]
    observed: tuple[Traffic, ...]
    seconds: float
    difference: str | None = None
    skipped: str | None = None

    @property
    def passed(self) -> bool | None:
        """Everything agreed; None when nothing could be run."""
        return None if self.skipped is not None else self.difference is None

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {**asdict(self), "passed": self.passed}


def run_full_size(
    source: ModelSource, graph: OpGraph, strategy: Strategy, *, sequences: int, length: int
) -> FullSizeReport:
    """Run the last rank of ``strategy``, at its own degrees, on meta tensors of the graph's dtype.

    Of a pipeline the last rank of the first stage runs too.

    Args:
        source: the model at full size.
        graph: its trace.
        strategy: what to run.
        sequences: per dp rank, of ``length`` tokens each, in one pass without a past.
        length: see ``sequences``.
    """
    started = time.perf_counter()
    d = strategy.degrees
    stages = sorted({0, d.pp - 1})
    expected: list[Traffic] = []
    observed: list[Traffic] = []
    differences: list[str] = []
    traffic_ok = bytes_ok = True
    logits_shape = skipped = None
    most_bytes = 0
    for stage in stages:
        rank = _rank(strategy, stage)
        want = expect(graph, strategy, sequences=sequences * d.dp, lengths=(length,), dtype=graph.dtype, stage=stage)
        expected += want.traffic
        most_bytes = max(most_bytes, want.parameter_bytes)
        result = _run_rank(source, graph, strategy, rank, (sequences, length))
        if "exception" in result:
            skipped = _needs_data(source, graph, (sequences, length))
            differences.append(f"rank {rank} raised {result['exception']}")
            traffic_ok = bytes_ok = False
            continue
        seen = named_traffic(graph, d, want, rank, result["traffic"], {})
        observed += seen
        if seen != want.traffic:
            traffic_ok = False
            differences.append(f"rank {rank}: {first_difference(want.traffic, seen)}")
        if result["parameter_bytes"] != want.parameter_bytes:
            bytes_ok = False
            differences.append(
                f"rank {rank} holds {result['parameter_bytes']} bytes of parameters, expected {want.parameter_bytes}"
            )
        logits_shape = result["logits_shape"]
        wanted = _logits_shape(graph, sequences, length) if stage == d.pp - 1 else None
        if logits_shape != wanted:
            differences.append(f"rank {rank}: logits are {logits_shape}, expected {wanted}")
    return FullSizeReport(
        world_size=d.num_devices,
        ranks=tuple(_rank(strategy, stage) for stage in stages),
        tokens=sequences * length,
        logits_shape=logits_shape,
        parameter_bytes=most_bytes,
        parameter_bytes_match=bytes_ok,
        collectives_match=traffic_ok,
        expected=tuple(expected),
        observed=tuple(observed),
        seconds=time.perf_counter() - started,
        difference=differences[0] if differences else None,
        skipped=skipped,
    )


def _rank(strategy: Strategy, stage: int) -> int:
    """The last rank of a stage, whose parts begin furthest from the start; the first where it has the most tokens."""
    group = strategy.degrees.group
    return stage * group if strategy.exchange else (stage + 1) * group - 1


def _logits_shape(graph: OpGraph, sequences: int, length: int) -> tuple[int, int, int]:
    return sequences, length, max(op.vocab.size for _, op in graph.all_ops() if op.kind == "embedding")


def _run_rank(
    source: ModelSource, graph: OpGraph, strategy: Strategy, rank: int, shape: tuple[int, int]
) -> dict[str, Any]:
    """What one rank holds and sends. In a thread, so that a process group of the caller is left alone."""
    result: dict[str, Any] = {}

    def live() -> None:
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=strategy.degrees.num_devices)
        try:
            result.update(_one_pass(source, graph, strategy, shape))
        except Exception as error:
            if os.environ.get("AUTOSHARD_DEBUG"):
                traceback.print_exc()
            result["exception"] = f"{type(error).__name__}: {error}"
        finally:
            dist.destroy_process_group()

    with threads_as_ranks():
        thread = threading.Thread(target=live)
        thread.start()
        thread.join()
    return result


def _needs_data(source: ModelSource, graph: OpGraph, shape: tuple[int, int]) -> str | None:
    """Why the unsharded model cannot be run on meta tensors; None if it can."""
    model = source.build(dtype=graph.dtype)
    try:
        _forward(model, shape)
    except Exception as error:
        return f"without data the model itself raises {type(error).__name__}: {str(error).splitlines()[0]}"
    return None


def _forward(model: nn.Module, shape: tuple[int, int]) -> tuple[CommLog, tuple[int, ...] | None]:
    """One pass on meta tensors: what it sent, and the shape of the logits."""
    alone = mock.patch.object(dist, "batch_isend_irecv", _one_by_one)
    with traceable_kernels(model), alone, PretendedRank() as comm, BalancedRouting():
        logits = next_logits(model, torch.zeros(shape, dtype=torch.long, device="meta"), new_cache(model))
    return comm, None if logits is None else tuple(logits.shape)


def _one_by_one(ops: list[dist.P2POp]) -> list[dist.Work]:
    """Each by itself: batching asks the group for a backend of the tensors' device, and meta has none."""
    works = [op.op(op.tensor, op.peer, op.group) for op in ops]
    return [work for work in works if work is not None]


def _one_pass(source: ModelSource, graph: OpGraph, strategy: Strategy, shape: tuple[int, int]) -> dict[str, Any]:
    mesh = device_mesh(graph, strategy.degrees, "cpu")
    model = apply(source.build(dtype=graph.dtype), graph, strategy, mesh)
    comm, logits_shape = _forward(model, shape)
    return {
        "traffic": traffic_of(comm, 0),
        "parameter_bytes": parameter_bytes(model),
        "logits_shape": logits_shape,
    }


class PretendedRank(CommLog):
    """Logs collectives on meta tensors, for which no process group has a kernel: nothing is sent, shapes are known."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if collective_name(func) is None:
            if func is READ_VALUE and args[0].dtype is torch.bool:
                return True  # models ask whether a mask is trivial: here nothing is padded or packed
            return func(*args, **(kwargs or {}))
        args = (*args, *(kwargs or {}).values())
        stood = tuple(_stand_in(a) for a in args)
        out = func(*without_rows(func._schema.name, stood))  # for the handle that callers wait on
        self.record(func._schema.name, args, out)
        return (args[0], *out[1:]) if isinstance(out, tuple) else out


def _stand_in(value: Any) -> Any:
    """An argument with empty tensors on the CPU in place of those on meta."""
    if isinstance(value, torch.Tensor):
        return torch.empty(0, dtype=value.dtype)
    return [_stand_in(v) for v in value] if isinstance(value, list) else value
