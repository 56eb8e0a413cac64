"""A log of what ranks really send: every collective that reaches torch's dispatcher, with its group and its bytes.

Bytes follow `autoshard.sharding.Step`: the buffer of an all_reduce, the gathered output of an all_gather, the total
input of a reduce_scatter, the send buffer of an all_to_all. Both dialects are seen: ``c10d`` (torch.distributed calls)
and ``_c10d_functional`` (DTensor's own redistributes), so that a collective nobody planned shows up too.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor

from autoshard._torch import DispatchMode, as_process_group, group_by_name

Payload = Literal["first", "output", "input"]

_KINDS: Mapping[str, tuple[str, Payload]] = {
    "c10d::allreduce_": ("all_reduce", "first"),
    "c10d::_allgather_base_": ("all_gather", "first"),
    "c10d::allgather_": ("all_gather", "first"),
    "c10d::_reduce_scatter_base_": ("reduce_scatter", "input"),
    "c10d::reduce_scatter_": ("reduce_scatter", "input"),
    "c10d::alltoall_base_": ("all_to_all", "input"),
    "c10d::alltoall_": ("all_to_all", "input"),
    "c10d::broadcast_": ("broadcast", "first"),
    "c10d::send": ("send_recv", "first"),
    "_c10d_functional::all_reduce": ("all_reduce", "first"),
    "_c10d_functional::all_reduce_": ("all_reduce", "first"),
    "_c10d_functional::all_gather_into_tensor": ("all_gather", "output"),
    "_c10d_functional::reduce_scatter_tensor": ("reduce_scatter", "first"),
    "_c10d_functional::all_to_all_single": ("all_to_all", "first"),
    "_c10d_functional::broadcast": ("broadcast", "first"),
}
"""Operator -> kind, and which tensors are the payload: the first argument's, the second's, or the result."""

_QUIET = frozenset({"c10d::barrier", "c10d::monitored_barrier_", "c10d::recv_", "_c10d_functional::wait_tensor"})


@dataclass(frozen=True, slots=True)
class LoggedCollective:
    """One collective as it ran on this rank; ``ranks`` are the global ranks of its group.

    ``received_bytes`` is the buffer that an all_to_all fills, whose parts may be of any size; ``num_bytes`` otherwise.
    """

    kind: str
    ranks: tuple[int, ...]
    num_bytes: int
    received_bytes: int


class CommLog(DispatchMode):
    """While active, appends every collective of this rank to ``log``."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[LoggedCollective] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func._schema.name
        namespace = name.partition("::")[0]
        if namespace in ("c10d", "_c10d_functional") and name not in _QUIET:
            kind, payload = _KINDS.get(name, (name, "first"))
            of = {"first": args[:1], "input": args[1:2], "output": (out,)}[payload]
            num_bytes = received_bytes = _bytes(of)
            if kind == "all_to_all":
                received_bytes = _bytes((out,) if namespace == "_c10d_functional" else args[:1])
            self.log.append(LoggedCollective(kind, _group_of(args), num_bytes, received_bytes))
        return out


def _bytes(value: Any) -> int:
    return sum(t.numel() * t.element_size() for t in _tensors(value))


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)


def _group_of(args: tuple[Any, ...]) -> tuple[int, ...]:
    """Global ranks of the group among an operator's arguments."""
    for value in args:
        if isinstance(value, torch.ScriptObject):
            group = as_process_group(value)
            if group is not None:
                return tuple(dist.get_process_group_ranks(group))
    names = [a for a in args if isinstance(a, str)]
    if not names:
        return ()
    return tuple(dist.get_process_group_ranks(group_by_name(names[-1])))
