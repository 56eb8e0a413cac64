"""Ranks as threads: who meets whom, what collectives do to tensors, and that nobody waits for ever."""

import sys
import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from autoshard._torch import FakeStore, threads_as_ranks
from autoshard.validate.exchange import SimulatedRank
from autoshard.validate.network import Network, NetworkError

RANKS = 3


def on_ranks(body: Callable[[int], Any], timeout_s: float = 30.0) -> list[Any]:
    """What ``body`` gives on every rank, an exception included."""
    network = Network(RANKS, timeout_s)
    found: list[Any] = [None] * RANKS

    def live(rank: int) -> None:
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=RANKS)
        try:
            with SimulatedRank(network, rank) as line, line.listen() as heard:
                value = body(rank)
                found[rank] = (value, [(c.kind, c.ranks, c.num_bytes) for c in heard.log])
        except Exception as error:
            network.alarm(f"rank {rank} raised {error}")
            found[rank] = error
        finally:
            network.finish(rank)
            dist.destroy_process_group()

    with threads_as_ranks():
        threads = [threading.Thread(target=live, args=(r,)) for r in range(RANKS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return found


def values(body: Callable[[int], Any]) -> list[Any]:
    """What ``body`` gives on every rank; an exception of a rank is raised."""
    found = on_ranks(body)
    for value in found:
        if isinstance(value, Exception):
            raise value
    return [value for value, _ in found]


def test_collectives_by_hand() -> None:
    def body(rank: int) -> list[list[float]]:
        x = torch.arange(3.0) + 10 * rank  # rank 0: 0 1 2, rank 1: 10 11 12, rank 2: 20 21 22
        total = x.clone()
        dist.all_reduce(total)
        gathered = torch.empty(9)
        dist.all_gather_into_tensor(gathered, x)
        mine = torch.empty(1)
        dist.reduce_scatter_tensor(mine, x)
        turned = torch.empty(3)
        dist.all_to_all_single(turned, x)
        from_one = x.clone()
        dist.broadcast(from_one, src=1)
        return [t.tolist() for t in (total, gathered, mine, turned, from_one)]

    for rank, (values, log) in enumerate(on_ranks(body)):
        assert values == [
            [30, 33, 36],
            [0, 1, 2, 10, 11, 12, 20, 21, 22],
            [30 + 3 * rank],  # the rank-th column summed: 0 + 10 + 20, 1 + 11 + 21, ...
            [rank, 10 + rank, 20 + rank],
            [10, 11, 12],
        ]
        kinds = ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"]
        assert [kind for kind, _, _ in log] == kinds
        assert [num_bytes for _, _, num_bytes in log] == [12, 36, 12, 12, 12]
        assert {ranks for _, ranks, _ in log} == {(0, 1, 2)}


def test_uneven_all_to_all_and_messages() -> None:
    # rank r sends r rows to rank 0, one to rank 1 and none to rank 2
    def body(rank: int) -> tuple[list[float], float]:
        rows = torch.full((rank + 1,), float(rank))
        got = {0: torch.empty(0 + 1 + 2), 1: torch.empty(3), 2: torch.empty(0)}[rank]
        sent = {0: [0, 1, 2], 1: [1, 1, 1], 2: [0, 0, 0]}[rank]
        dist.all_to_all_single(got, rows, sent, [rank, 1, 0])
        token = torch.tensor(float(rank))
        if rank > 0:
            dist.recv(token, src=rank - 1)
        if rank < RANKS - 1:
            dist.send(token + 1, dst=rank + 1)
        return got.tolist(), token.item()

    assert values(body) == [([1, 2, 2], 0.0), ([0, 1, 2], 1.0), ([], 2.0)]


def test_subgroups_meet_among_themselves() -> None:
    def body(rank: int) -> float:
        pair = dist.new_group([0, 2])
        x = torch.tensor([float(rank + 1)])
        if rank != 1:
            dist.all_reduce(x, group=pair)
        return x.item()

    assert values(body) == [4.0, 2.0, 4.0]


def test_a_rank_left_alone_is_an_error_at_once() -> None:
    def body(rank: int) -> None:
        if rank != 2:
            dist.all_reduce(torch.zeros(1))

    found = on_ranks(body, timeout_s=1000.0)
    assert all(isinstance(found[r], NetworkError) for r in (0, 1))
    assert "nobody is left to go on: rank 0 for all_reduce of 4 bytes" in str(found[0])


def test_a_rank_that_fails_wakes_the_others() -> None:
    def body(rank: int) -> None:
        if rank == 2:
            raise ValueError("broken")
        dist.all_reduce(torch.zeros(1))

    found = on_ranks(body, timeout_s=1000.0)
    assert isinstance(found[2], ValueError)
    assert all("rank 2 raised broken" in str(found[r]) for r in (0, 1))


def test_ranks_that_call_different_things_are_told() -> None:
    def body(rank: int) -> None:
        dist.all_reduce(torch.zeros(2 if rank == 1 else 1))

    found = on_ranks(body)
    assert any("all_reduce of 8 bytes" in str(e) and "all_reduce of 4 bytes" in str(e) for e in found)


def test_only_sums_are_carried() -> None:
    def body(_: int) -> None:
        dist.all_reduce(torch.zeros(1), op=dist.ReduceOp.MAX)

    assert all("only sum" in str(e) for e in on_ranks(body))


def test_process_groups_of_the_caller_come_back() -> None:
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=2)
    report = sys.excepthook
    try:
        assert values(lambda rank: dist.get_rank() - rank) == [0, 0, 0]
        assert (dist.get_rank(), dist.get_world_size()) == (1, 2)
        assert sys.excepthook is report
    finally:
        dist.destroy_process_group()
