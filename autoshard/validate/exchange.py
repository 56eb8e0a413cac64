"""What collectives do to tensors, and the dispatch mode that carries them between ranks that are threads.

A rank's process group is torch's fake one, which sends nothing; the mode sees every collective that reaches the
dispatcher, logs it as `CommLog` does, and fills in what the network would have brought. So a simulated rank runs the
very calls of a real one: the same emitted code, ``torch.distributed`` calls and log.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from autoshard._torch import reduces_by_sum
from autoshard.validate.comm_log import (
    NOT_SENT,
    CommLog,
    LoggedCollective,
    collective_name,
    group_of,
    holds_dtensor,
    tensors_in,
)
from autoshard.validate.network import Network

Offer = tuple[Sequence[Tensor], Sequence[Tensor], Sequence[int] | None]
"""What a rank brings: tensors to read, tensors to write, and the rows it sends to each rank (None: equal shares)."""


def all_reduce(offers: list[Offer]) -> None:
    """Everybody gets the sum, added in rank order."""
    for parts in zip(*(read for read, _, _ in offers), strict=True):
        total = parts[0].clone()
        for part in parts[1:]:
            total += part
        for _, write, _ in offers:
            write[0].copy_(total)


def all_gather(offers: list[Offer]) -> None:
    """Everybody gets all parts, in rank order: side by side in one tensor, or a tensor each."""
    for _, write, _ in offers:
        into = write if len(write) == len(offers) and len(offers) > 1 else write[0].chunk(len(offers))
        for target, (read, _, _) in zip(into, offers, strict=True):
            target.copy_(read[0].view_as(target))


def reduce_scatter(offers: list[Offer]) -> None:
    """Rank i gets the sum of everybody's i-th part."""
    for i, (_, write, _) in enumerate(offers):
        parts = [read[i] if len(read) > 1 else read[0].chunk(len(offers))[i] for read, _, _ in offers]
        total = parts[0].clone()
        for part in parts[1:]:
            total += part
        write[0].copy_(total.view_as(write[0]))


def all_to_all(offers: list[Offer]) -> None:
    """Rank i gets everybody's i-th part, in rank order; parts may differ in length."""
    sent = [read if len(read) > 1 else _cut(read[0], rows, len(offers)) for read, _, rows in offers]
    for i, (_, write, _) in enumerate(offers):
        parts = [parts[i] for parts in sent]
        if len(write) > 1:
            for target, part in zip(write, parts, strict=True):
                target.copy_(part)
        elif write[0].numel():
            write[0].copy_(torch.cat(parts))


def _cut(x: Tensor, rows: Sequence[int] | None, size: int) -> Sequence[Tensor]:
    return torch.split(x, list(rows)) if rows else x.chunk(size)


@dataclass(frozen=True, slots=True)
class _Carried:
    """How one operator is carried: which arguments are read and written (``out`` is its result), and what it does."""

    work: Callable[[list[Offer]], None]
    read: int
    write: int | str
    rows: int | None = None


_CARRIED: Mapping[str, _Carried] = {
    "c10d::allreduce_": _Carried(all_reduce, 0, 0),
    "c10d::_allgather_base_": _Carried(all_gather, 1, 0),
    "c10d::allgather_": _Carried(all_gather, 1, 0),
    "c10d::_reduce_scatter_base_": _Carried(reduce_scatter, 1, 0),
    "c10d::reduce_scatter_": _Carried(reduce_scatter, 1, 0),
    "c10d::alltoall_base_": _Carried(all_to_all, 1, 0, rows=4),
    "c10d::alltoall_": _Carried(all_to_all, 1, 0),
    "c10d::barrier": _Carried(lambda _: None, 0, 0),
    "_c10d_functional::all_reduce": _Carried(all_reduce, 0, "out"),
    "_c10d_functional::all_reduce_": _Carried(all_reduce, 0, 0),
    "_c10d_functional::all_gather_into_tensor": _Carried(all_gather, 0, "out"),
    "_c10d_functional::reduce_scatter_tensor": _Carried(reduce_scatter, 0, "out"),
    "_c10d_functional::all_to_all_single": _Carried(all_to_all, 0, "out", rows=2),
}
_RAGGED = frozenset({"c10d::alltoall_base_", "c10d::alltoall_", "_c10d_functional::all_to_all_single"})
"""Operators in which ranks may bring different numbers of bytes."""


class SimulatedRank(CommLog):
    """While active in a thread, that thread is rank ``rank`` of the network."""

    def __init__(self, network: Network, rank: int) -> None:
        super().__init__()
        self.network = network
        self.rank = rank

    @contextmanager
    def listen(self) -> Iterator["SimulatedRank"]:
        """Like a `CommLog`: afterwards ``log`` holds the collectives of this section."""
        self.log = []
        yield self

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if types and holds_dtensor(types):
            return NotImplemented  # DTensor's own dispatch first: the collectives it makes come by here
        name = collective_name(func)
        if name is None:
            return func(*args, **kwargs) if kwargs else func(*args)
        args = (*args, *(kwargs or {}).values())
        with torch.no_grad():
            return self._communicate(func, name, args)

    def _communicate(self, func: Any, name: str, args: tuple[Any, ...]) -> Any:
        # The fake group allocates and returns what the real one would.
        out = func(*without_rows(name, args))
        if name in NOT_SENT:
            return out
        seen = self.record(name, args, out)
        if name in ("c10d::send", "c10d::recv_"):
            self._pass_on(name, args)
        elif name == "c10d::broadcast_":
            # The tensors of the root; positions within the group.
            self._meet(name, seen, _broadcast_from(args[2]), (args[0], args[0], None))
        elif name in _CARRIED:
            assert reduces_by_sum(args), f"{name}: simulated ranks only sum"
            how = _CARRIED[name]
            write = (out,) if how.write == "out" else args[how.write]  # type: ignore[index]
            rows = None if how.rows is None else args[how.rows]
            self._meet(name, seen, how.work, (tuple(tensors_in(args[how.read])), tuple(tensors_in(write)), rows))
        else:
            raise NotImplementedError(f"{name} is not carried between simulated ranks")
        return out

    def _meet(self, name: str, seen: LoggedCollective, work: Callable[[list[Offer]], None], offer: Offer) -> None:
        what = seen.kind if name in _RAGGED else f"{seen.kind} of {seen.num_bytes} bytes"
        self.network.meet(self.rank, seen.ranks, what, offer, work)

    def _pass_on(self, name: str, args: tuple[Any, ...]) -> None:
        tensors, _, peer, tag = args[:4]
        group = group_of(args)
        other = group[peer] if group else peer
        if name == "c10d::send":
            self.network.send(self.rank, other, tag, [t.clone() for t in tensors])
        else:
            for mine, theirs in zip(tensors, self.network.receive(other, self.rank, tag), strict=True):
                mine.copy_(theirs)


def without_rows(name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Arguments for the fake group, which copies: of an all_to_all none, since it refuses parts unlike in length."""
    if name != "c10d::alltoall_base_":
        return args
    return (args[0].new_empty(0), args[1].new_empty(0), args[2], [], [], *args[5:])


def _broadcast_from(root: int) -> Callable[[list[Offer]], None]:
    def work(offers: list[Offer]) -> None:
        for _, write, _ in offers:
            for target, source in zip(write, offers[root][0], strict=True):
                if target is not source:
                    target.copy_(source)

    return work
