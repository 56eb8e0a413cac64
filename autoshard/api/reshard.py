"""Different layouts for prompts and for answers on the same GPUs, with what it costs to go from one to the other.

A *period* serves some requests from prompts to last tokens: all prompts are worked off in one layout, weights and
caches are moved, all answers are made in the other, and the weights are moved back (after Seesaw: Su et al. 2025, who
keep caches in host memory besides; here they stay on the devices). So the requests of a period are at most those whose
caches fit, and what is moved is spread over them:

    period = N isl / prompt rate + (N requests' osl - 1 steps) + move weights and caches + move weights back

The best single layout is found by the same formula without moves. It serves offline throughput: no limit on TTFT or
TPOT is kept. Steps are priced at the full length ``isl + osl``, which memory must hold. Nothing here runs such a pair.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autoshard.api.build_plan import degrees_dict
from autoshard.api.solve import degree_kinds, make_simulator
from autoshard.errors import InvalidInputError, NoFeasiblePlanError
from autoshard.hardware import Cluster
from autoshard.ir import OpGraph
from autoshard.search.exact import ExactSearch
from autoshard.sharding import Strategy
from autoshard.simulator import Simulator
from autoshard.simulator.reshard import Move, move_caches, move_weights
from autoshard.workload import Workload

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
NUM_PAIRED = 6
"""Best degrees of each phase of which all pairs are tried."""
NUM_SETTLED = 8
"""Degrees of each phase whose best is proven; no others exceed the last of them."""
NUM_SINGLE = 12
"""Degrees tried for both phases, those with the highest bound."""
NEARLY = 0.99
"""Share of the fastest prompts' rate for which a smaller batch, with more room for caches, is tried too."""
NOWHERE = Move(received_bytes=0.0, sent_bytes=0.0, seconds=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """Requests of a period and its seconds: prompts, answers, and the three moves."""

    prompts: Strategy
    answers: Strategy
    requests: int
    prefill_s: float
    decode_s: float
    moves: Mapping[str, Move]
    rate: float

    @property
    def period_s(self) -> float:
        """Seconds from the first prompt to the next period."""
        return self.prefill_s + self.decode_s + sum(m.seconds for m in self.moves.values())


class _Phase:
    """One phase: its simulator, and per kind of degrees the best point and its choices."""

    def __init__(self, simulator: Simulator) -> None:
        self.sim = simulator
        found = ExactSearch(simulator).run(NUM_SETTLED, degree_kinds(simulator.points), everywhere=True)
        if found.point is None:
            raise NoFeasiblePlanError(f"nothing is feasible in phase {simulator.workload.phase!r}")
        self.values, self.dims_of = found.values, found.dims_of
        self.best: dict[tuple[int, ...], tuple[float, int, tuple[int, ...]]] = {}
        for point, dims in found.dims_of.items():
            key, rate = self.key(point), float(found.values[point])
            if rate > self.best.get(key, (0.0, 0, ()))[0]:
                self.best[key] = (rate, point, dims)

        settled = {self.key(point): float(found.values[point]) for point in found.best_points}
        self._settled, least = settled, min(settled.values())
        self._others = least if len(settled) == NUM_SETTLED else 0.0

    def bound(self, key: tuple[int, ...]) -> float:
        """What no strategy of these degrees exceeds, in tokens/s: proven, or the least that is proven of others."""
        return self._settled.get(key, max(self._others, self.best[key][0]))

    def key(self, point: int) -> tuple[int, ...]:
        """The degrees of a point, whatever its batch."""
        p = self.sim.points
        return tuple(int(a[point]) for a in (p.pp, p.dp, p.tp, p.ep, p.replicas))

    def top(self, count: int) -> list[tuple[int, ...]]:
        """The best degrees, best first."""
        return sorted(self.best, key=lambda k: -self.best[k][0])[:count]

    def candidates(self, key: tuple[int, ...]) -> list[tuple[int, tuple[int, ...]]]:
        """(point, choices) of degrees: the fastest batch, and the smallest that is nearly as fast."""
        fastest = self.best[key]
        near = [i for i in self.points_like(key).tolist() if self.values[i] >= NEARLY * fastest[0]]
        return [(fastest[1], fastest[2]), *((i, self.dims_of[i]) for i in near[:1] if i != fastest[1])]

    def points_like(self, key: tuple[int, ...]) -> IntArray:
        """Points of the same degrees, smallest batch first."""
        p = self.sim.points
        same = (p.pp == key[0]) & (p.dp == key[1]) & (p.tp == key[2]) & (p.ep == key[3]) & (p.replicas == key[4])
        index = np.flatnonzero(same)
        found: IntArray = index[np.argsort(p.batch[index], kind="stable")]
        return found


class Resharding:
    """Periods of one model, cluster and lengths."""

    def __init__(
        self, graph: OpGraph, cluster: Cluster, workload: Workload, *, requests: int | None, tell: Callable[[str], None]
    ) -> None:
        self.graph, self.cluster, self.most = graph, cluster, requests
        self.isl, self.osl = workload.prompt_tokens, workload.answer_tokens
        plain = replace(workload, phase="decode", isl=None, osl=None, context=self.isl + self.osl)
        tell("the fastest layouts for answers")
        self.decode = _Phase(make_simulator(graph, cluster, plain))
        tell("the fastest layouts for prompts")
        prompts = replace(plain, phase="prefill", isl=self.isl, context=self.isl)
        self.prefill = _Phase(make_simulator(graph, cluster, prompts))
        self._weights: dict[tuple[Strategy, Strategy], Move] = {}

    def period(
        self, prompts: tuple[int, tuple[int, ...]], answers: tuple[tuple[int, ...], tuple[int, ...]]
    ) -> Period | None:
        """The best period with prompts at a (point, choices) and answers at (degrees, choices), any batch of them.

        None where no batch fits.
        """
        point, dims = prompts
        sim = self.prefill.sim
        room = self._room(point, dims)
        index = self.decode.points_like(answers[0])
        if not len(index) or room < 1:
            return None
        p = self.decode.sim.points
        many = p.batch[index] * p.replicas[index]
        index = index[many <= min(room, self.most or room)]
        if not len(index):
            return None
        rows = np.tile(np.array(answers[1], dtype=np.int64), (len(index), 1))
        made = self.decode.sim.evaluate(index, rows)
        fine = made.violation == 0
        if not fine.any():
            return None
        index, step_s = index[fine], made.step_s[fine]
        requests = (p.batch[index] * p.replicas[index]).astype(np.float64)
        one = sim.evaluate(np.array([point]), np.array([dims], dtype=np.int64))
        if one.violation[0] > 0:
            return None
        prefill_s = requests * self.isl / float(one.tokens_per_s[0])
        decode_s = (self.osl - 1) * step_s
        old = sim.strategy(point, dims)
        new = self.decode.sim.strategy(int(index[0]), answers[1])
        there, back, cache = self._moves(old, new)
        total = prefill_s + decode_s + there.seconds + back.seconds + cache.seconds * requests
        best = int((requests / total).argmax())
        count = int(requests[best])
        strategy = self.decode.sim.strategy(int(index[best]), answers[1])
        moves = {"weights_to_decode": there, "caches_to_decode": self._caches(old, new, count)}
        found = Period(
            prompts=old,
            answers=strategy,
            requests=count,
            prefill_s=float(prefill_s[best]),
            decode_s=float(decode_s[best]),
            moves={**moves, "weights_to_prefill": back},
            rate=0.0,
        )
        return replace(found, rate=count * self.osl / found.period_s / self.cluster.num_devices)

    def _room(self, point: int, dims: tuple[int, ...]) -> int:
        """Requests whose prompts' caches fit beside the weights and activations of a prompt layout."""
        sim = self.prefill.sim
        at, options = np.array([point]), np.array([dims], dtype=np.int64)
        e = sim.evaluate(at, options)
        degrees = sim.points.degrees(point)
        free = sim.capacity_bytes - float(e.weights_bytes[0]) - float(sim.fixed_bytes(at)[0])
        each = float(e.kv_bytes[0]) / (degrees.batch // degrees.dp)
        if each <= 0:
            return 2**31
        return int(free / each) * degrees.dp * degrees.replicas

    def _moves(self, old: Strategy, new: Strategy) -> tuple[Move, Move, Move]:
        """Weights there and back, and the caches of one request (its seconds without latency, to be multiplied)."""
        if _same_layout(old, new):
            return NOWHERE, NOWHERE, NOWHERE
        workload = self.decode.sim.workload
        a, b = _without_batch(old), _without_batch(new)
        for pair in ((a, b), (b, a)):
            if pair not in self._weights:
                self._weights[pair] = move_weights(self.graph, self.cluster, workload, *pair)
        many = 1_000_000
        caches = self._caches(old, new, many)
        return self._weights[a, b], self._weights[b, a], replace(caches, seconds=caches.seconds / many)

    def _caches(self, old: Strategy, new: Strategy, requests: int) -> Move:
        if _same_layout(old, new):
            return NOWHERE
        workload = self.decode.sim.workload
        return move_caches(self.graph, self.cluster, workload, old, new, requests=requests, tokens=self.isl)

    def best_pair(self) -> Period | None:
        """The best of all pairs of the best layouts for prompts and for answers."""
        found = []
        for mine in self.prefill.top(NUM_PAIRED):
            for prompts in self.prefill.candidates(mine):
                for other in self.decode.top(NUM_PAIRED):
                    found.append(self.period(prompts, (other, self.decode.best[other][2])))
        return max((p for p in found if p is not None), key=lambda p: p.rate, default=None)

    def best_single(self) -> tuple[Period | None, float]:
        """The best layout found for both, and what none of them exceeds, in tokens made per second and GPU.

        The bound of a layout takes the best choices and batch of each phase by itself (those proven, `_Phase.bound`).
        """
        bounds = {}
        for key in self.prefill.best.keys() & self.decode.best.keys():
            per_token = (self.isl / self.prefill.bound(key) + (self.osl - 1) / self.decode.bound(key)) / self.osl
            bounds[key] = 1.0 / per_token / self.cluster.num_devices
        best: Period | None = None
        for key in sorted(bounds, key=lambda k: -bounds[k])[:NUM_SINGLE]:
            if best is not None and bounds[key] <= best.rate:
                break
            for point, dims in self.prefill.candidates(key):
                for start in (dims, self.decode.best[key][2]):
                    found = self._improved(key, point, start)
                    if found is not None and (best is None or found.rate > best.rate):
                        best = found
        return best, max(bounds.values(), default=0.0)

    def _improved(self, key: tuple[int, ...], point: int, start: tuple[int, ...]) -> Period | None:
        """A layout for both (prompts at ``point``), its choices changed one by one as long as that helps."""
        dims, best = start, self.period((point, start), (key, start))
        changed = True
        while changed:
            changed = False
            for v, variable in enumerate(self.decode.sim.variables):
                for option in range(len(variable.choices)):
                    other = (*dims[:v], option, *dims[v + 1 :])
                    found = None if other == dims else self.period((point, other), (key, other))
                    if found is not None and (best is None or found.rate > best.rate * (1 + 1e-12)):
                        dims, best, changed = other, found, True
        return best


def _without_batch(strategy: Strategy) -> Strategy:
    d = strategy.degrees
    return replace(strategy, degrees=replace(d, batch=d.dp * d.pp))


def _same_layout(a: Strategy, b: Strategy) -> bool:
    return _without_batch(a) == _without_batch(b)


def reshard(
    graph: OpGraph,
    cluster: Cluster,
    workload: Workload,
    *,
    requests: int | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """The best pair of layouts beside the best single one; rates are tokens made per second and GPU.

    Args:
        graph: The model.
        cluster: The GPUs.
        workload: Of phase ``serve``: tokens of prompts and answers, dtypes.
        requests: Most requests of a period; as many as fit by default.
        progress: Is told what is being done.

    Raises:
        InvalidInputError: for another phase, limits on latency, or fewer than one request.
        NoFeasiblePlanError: when a phase fits nowhere.
    """
    if workload.phase != "serve":
        raise InvalidInputError(f"re-sharding goes between prompts and answers: phase 'serve', not {workload.phase!r}")
    for name in ("ttft_ms", "tpot_ms", "concurrency", "engine"):
        if getattr(workload, name) is not None:
            raise InvalidInputError(f"{name}={getattr(workload, name)} has no meaning here: what counts is throughput")
    if requests is not None and requests < 1:
        raise InvalidInputError(f"requests={requests} must be at least 1")
    both = Resharding(graph, cluster, workload, requests=requests, tell=progress)
    progress("pairs of layouts")
    pair = both.best_pair()
    progress("single layouts")
    single, bound = both.best_single()
    if pair is None and single is None:
        raise NoFeasiblePlanError(
            f"no layout holds the caches of any batch of at most {requests or 'all'} requests; ask for more requests"
        )
    return {
        "model": graph.model_name,
        "cluster": cluster.name,
        "isl": both.isl,
        "osl": both.osl,
        "requests_at_most": requests,
        "pair": None if pair is None else _described(pair),
        "single": None if single is None else _described(single),
        "single_bound_tokens_per_s_per_gpu": bound,
        "gain": None if pair is None or single is None else pair.rate / single.rate - 1.0,
        "simulated_only": True,
    }


def _described(period: Period) -> dict[str, Any]:
    return {
        "prefill": {"degrees": degrees_dict(period.prompts.degrees), "choices": dict(period.prompts.choices)},
        "decode": {"degrees": degrees_dict(period.answers.degrees), "choices": dict(period.answers.choices)},
        "requests": period.requests,
        "period_s": period.period_s,
        "seconds": {
            "prefill": period.prefill_s,
            "decode": period.decode_s,
            **{name: move.seconds for name, move in period.moves.items()},
        },
        "moved_bytes": {
            name: {"received": move.received_bytes, "sent": move.sent_bytes} for name, move in period.moves.items()
        },
        "tokens_per_s_per_gpu": period.rate,
    }
