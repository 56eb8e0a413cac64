"""A log of what ranks really send: every collective that reaches torch's dispatcher, with its group and its bytes.

Bytes follow `autoshard.sharding.Step`: the buffer of an all_reduce, the gathered output of an all_gather, the total
input of a reduce_scatter, the send buffer of an all_to_all, the message of a send (logged by the sender). Both dialects
are seen: ``c10d`` (torch.distributed calls) and ``_c10d_functional`` (DTensor's own redistributes), so that a
collective nobody planned shows up too.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

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

NOT_SENT = frozenset({"_c10d_functional::wait_tensor", "_c10d_functional::_wrap_tensor_autograd"})
"""Operators of these namespaces that communicate nothing."""
_QUIET = NOT_SENT | {"c10d::barrier", "c10d::monitored_barrier_", "c10d::recv_"}


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
        if types and holds_dtensor(types):
            return NotImplemented  # DTensor's own dispatch first: the collectives it makes come by here
        out = func(*args, **(kwargs or {}))
        name = collective_name(func)
        if name is not None:
            self.record(name, args, out)
        return out

    def record(self, name: str, args: tuple[Any, ...], out: Any) -> LoggedCollective:
        """What the call of a collective's operator is; it goes to the log unless nothing is sent by this rank."""
        kind, payload = _KINDS.get(name, (name, "first"))
        of = {"first": args[:1], "input": args[1:2], "output": (out,)}[payload]
        num_bytes = received_bytes = _bytes(of)
        if kind == "all_to_all":
            received_bytes = _bytes((out,) if name.startswith("_c10d_functional") else args[:1])
        ranks = _between(args) if kind == "send_recv" else group_of(args)
        found = LoggedCollective(kind, ranks, num_bytes, received_bytes)
        if name not in _QUIET:
            self.log.append(found)
        return found


@cache
def collective_name(func: Any) -> str | None:
    """The name of an operator that communicates; None for all others."""
    name: str = func._schema.name
    return name if name.partition("::")[0] in ("c10d", "_c10d_functional") else None


def holds_dtensor(types: Iterable[type]) -> bool:
    """Whether an operator was called with DTensors."""
    return any(issubclass(t, DTensor) for t in types)


def _bytes(value: Any) -> int:
    return sum(t.numel() * t.element_size() for t in tensors_in(value))


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors of nested lists and tuples, in order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item)


def _between(args: tuple[Any, ...]) -> tuple[int, ...]:
    """Global ranks of sender and receiver of a ``send``: this rank, and the operator's group rank as a global one."""
    group = group_of(args)
    return tuple(sorted((dist.get_rank(), group[next(a for a in args if isinstance(a, int))])))


def group_of(args: tuple[Any, ...]) -> tuple[int, ...]:
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
