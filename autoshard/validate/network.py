"""Ranks that are threads of one process, and the place where they meet: no torch here.

Every rank calls the same collectives of a group in the same order (as real ranks must), so the n-th call of each member
of a group is one meeting. The last to arrive does the work for all, while the others sleep. Nobody can wait for ever:
when every rank is asleep or done, no one is left who could wake them, and all of them get an error that names what
each is waiting for. A rank that fails wakes the others in the same way.
"""

import threading
from collections import Counter, deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any


class NetworkError(RuntimeError):
    """Ranks that do not fit together: different calls, or someone left alone."""


@dataclass(slots=True)
class _Meeting:
    """One collective of one group."""

    size: int
    what: Hashable
    arrived: dict[int, Any] = field(default_factory=dict)
    over: threading.Event = field(default_factory=threading.Event)


class Network:
    """Where ``num_ranks`` threads meet. One case after the other: `finish` ends a rank's part in a case."""

    def __init__(self, num_ranks: int, timeout_s: float) -> None:
        self.num_ranks = num_ranks
        self.timeout_s = timeout_s
        self._lock = threading.Lock()
        self._begin()

    def _begin(self) -> None:
        self._error: str | None = None
        self._meetings: dict[Hashable, _Meeting] = {}
        self._calls: Counter[tuple[int, Hashable]] = Counter()
        self._mail: dict[Hashable, deque[Any]] = {}
        self._asleep: dict[int, tuple[Hashable, threading.Event]] = {}
        self._done = 0

    def reset(self) -> None:
        """Forget the case; only when every rank has finished it."""
        assert self._done == self.num_ranks and not self._asleep, "ranks are still at work"
        self._begin()

    def meet(
        self, rank: int, group: Sequence[int], what: Hashable, offer: Any, work: Callable[[list[Any]], None]
    ) -> None:
        """One collective of ``group`` (its ranks in group order), over when all members have called.

        Args:
            rank: who calls.
            group: the members, ``rank`` among them.
            what: kind and size of the call, which must be equal on all members.
            offer: the caller's tensors.
            work: called once, with all offers in group order; writes the results into them.

        Raises:
            NetworkError: when the calls differ, someone failed, or nobody can come any more.
        """
        with self._lock:
            self._check()
            call = (rank, tuple(group))
            key = (tuple(group), self._calls[call])
            self._calls[call] += 1
            meeting = self._meetings.setdefault(key, _Meeting(len(group), what))
            if meeting.what != what:
                self._fail(f"rank {rank} calls {what} where rank {min(meeting.arrived)} called {meeting.what}")
            meeting.arrived[rank] = offer
            last = len(meeting.arrived) == meeting.size
            if last:
                del self._meetings[key]
            else:
                self._sleep(rank, f"{what} of {tuple(group)}", meeting.over)
        if not last:
            self._wait(rank, meeting.over)
            return
        try:
            work([meeting.arrived[r] for r in group])
        except Exception as error:
            with self._lock:
                self._fail(f"{what}: {type(error).__name__}: {error}")
        with self._lock:
            for member in group:
                self._asleep.pop(member, None)
        meeting.over.set()

    def send(self, source: int, target: int, tag: int, message: Any) -> None:
        """Leave a message; the sender does not wait."""
        with self._lock:
            self._check()
            key = (source, target, tag)
            self._mail.setdefault(key, deque()).append(message)
            if target in self._asleep and self._asleep[target][0] == key:
                self._asleep.pop(target)[1].set()

    def receive(self, source: int, target: int, tag: int) -> Any:
        """The next message from ``source``; waits for it."""
        key = (source, target, tag)
        with self._lock:
            self._check()
            waiting = None
            if not self._mail.get(key):
                waiting = threading.Event()
                self._sleep(target, key, waiting)
        if waiting is not None:
            self._wait(target, waiting)
        with self._lock:
            return self._mail[key].popleft()

    def alarm(self, why: str) -> None:
        """Somebody cannot go on: wake everybody who waits."""
        with self._lock:
            if self._error is None:
                self._raise_alarm(why)

    def finish(self, rank: int) -> None:
        """The rank's part in this case is over."""
        with self._lock:
            assert rank not in self._asleep
            self._done += 1
            self._alarm_if_stuck()

    def _sleep(self, rank: int, why: Hashable, event: threading.Event) -> None:
        self._asleep[rank] = (why, event)
        self._alarm_if_stuck()

    def _alarm_if_stuck(self) -> None:
        if self._error is None and self._asleep and len(self._asleep) + self._done == self.num_ranks:
            waiting = ", ".join(f"rank {r} for {why}" for r, (why, _) in sorted(self._asleep.items())[:4])
            self._raise_alarm(f"nobody is left to go on: {waiting} wait, {self._done} ranks are done")

    def _wait(self, rank: int, event: threading.Event) -> None:
        if not event.wait(self.timeout_s):
            with self._lock:
                if not event.is_set():
                    self._raise_alarm(f"rank {rank} waited {self.timeout_s:.0f} s")
        with self._lock:
            self._check()

    def _check(self) -> None:
        if self._error is not None:
            raise NetworkError(self._error)

    def _fail(self, message: str) -> None:
        self._raise_alarm(message)
        raise NetworkError(message)

    def _raise_alarm(self, message: str) -> None:
        self._error = message
        sleepers = [event for _, event in self._asleep.values()]
        self._asleep.clear()
        for event in sleepers:
            event.set()
