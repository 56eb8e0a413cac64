"""All ranks in this process: a thread each, the emitted code unchanged, the network a meeting place.

Why threads and not torch's ``LocalTensorMode``, which runs one control flow for all ranks at once: emitted code asks
for its coordinate, experts count their own rows, a pipeline stage runs other layers than its neighbour. All of that is
ordinary Python that differs between ranks; threads run it as it is, so what is proved here is the code that real ranks
run. They take turns (Python's lock), which is no loss where few cores run many ranks.
"""

import threading
import time
from collections.abc import Iterator
from typing import Any

import torch.distributed as dist

from autoshard._torch import FakeStore, threads_as_ranks
from autoshard.validate.exchange import SimulatedRank
from autoshard.validate.job import Case, Job
from autoshard.validate.launch import LaunchTimeout
from autoshard.validate.network import Network
from autoshard.validate.worker import Rank, Unsharded, attempt, hook

_PATIENCE_S = 10.0
"""How long ranks that were told to stop are waited for."""


class Simulation:
    """The cases of a job, in order, on ranks that are threads; between two cases exactly one thread is at work."""

    def __init__(self, job: Job, num_ranks: int) -> None:
        self.job = job
        self.network = Network(num_ranks, job.timeout_s)
        self.results: list[list[dict[str, Any]]] = [[] for _ in range(num_ranks)]
        self.broken: BaseException | None = None
        self._abandoned = False
        self._schedule = self._cases(job)
        self._now: tuple[Unsharded, Case] | None = None
        self._turn = threading.Barrier(num_ranks, action=self._next)

    def run(self) -> list[list[dict[str, Any]]]:
        """Results of every rank, as `autoshard.validate.launch` gives them."""
        deadline = time.monotonic() + self.job.timeout_s
        with threads_as_ranks():
            threads = [threading.Thread(target=self._live, args=(r,), daemon=True) for r in range(len(self.results))]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(max(0.0, deadline - time.monotonic()))
            if any(t.is_alive() for t in threads):
                self._stop(LaunchTimeout(f"{len(threads)} simulated ranks: not done after {self.job.timeout_s:g} s"))
                for thread in threads:
                    thread.join(_PATIENCE_S / len(threads))
                self._abandoned = any(t.is_alive() for t in threads)
        if self.broken is not None:
            raise self.broken
        return self.results

    def _cases(self, job: Job) -> Iterator[tuple[Unsharded, Case]]:
        """Each case, within its hook: whatever follows a yield happens once all ranks are through with it."""
        for model in job.models:
            for dtype in model.dtypes or job.dtypes:
                whole = Unsharded(model, dtype, "cpu")
                for case in model.cases:
                    with hook(case.hook):
                        yield whole, case
                        self.network.reset()

    def _next(self) -> None:
        self._now = next(self._schedule, None) if self.broken is None else None

    def _stop(self, error: BaseException) -> None:
        """Nobody goes on: not who waits for a collective, not who waits for the next case."""
        self.broken = self.broken or error
        self.network.alarm(str(error))
        self._turn.abort()

    def _live(self, number: int) -> None:
        """One rank, from its process group to the last case."""
        dist.init_process_group("fake", store=FakeStore(), rank=number, world_size=len(self.results))
        line = SimulatedRank(self.network, number)
        rank = Rank(line.listen)
        try:
            self._turn.wait()
            while self._now is not None:
                with line:
                    result = attempt(rank, *self._now)
                if "exception" in result:
                    self.network.alarm(f"rank {number} raised {result['exception']}")
                self.results[number].append(result)
                self.network.finish(number)
                self._turn.wait()
        except threading.BrokenBarrierError:
            pass
        except BaseException as error:
            self._stop(error)
        finally:
            if not self._abandoned:  # else threads have no process groups of their own any more
                dist.destroy_process_group()


def simulate(job: Job, num_ranks: int) -> list[list[dict[str, Any]]]:
    """Run ``job`` on ``num_ranks`` simulated ranks; the results of every rank, in rank order.

    Raises:
        LaunchTimeout: when ranks are still at work after the job's time.
    """
    return Simulation(job, num_ranks).run()
