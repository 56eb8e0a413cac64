"""The plan nearest to one that a target cannot express: the best, by the same simulator, of those that it can.

A target that makes its own choices (an engine) is asked at every degree point what it would run there. One that takes
any choice within a part of the space (`Target.spaces`) gets the proven optimum of that part.
"""

from collections import Counter
from dataclasses import dataclass

import numpy as np

from autoshard.api.engine_rules import EngineRules, engine_rules
from autoshard.api.solve import make_simulator, solve
from autoshard.errors import AutoshardError
from autoshard.export import TARGETS
from autoshard.ir import OpGraph
from autoshard.sharding import Strategy
from autoshard.sharding.patterns import pattern_strategy
from autoshard.simulator import Simulator


@dataclass(frozen=True, slots=True, kw_only=True)
class Nearest:
    """The best strategy that a target would run and its predicted tokens/s/GPU, or why there is none."""

    strategy: Strategy | None = None
    tokens_per_s_per_gpu: float = 0.0
    why_none: str = ""


def legality(target: str, graph: OpGraph, strategy: Strategy, rules: EngineRules | None) -> tuple[str, ...]:
    """Why a target would not start with a strategy: what cannot be said there, and the rules of ``autoshard check``."""
    reasons = TARGETS[target].reasons(graph, strategy)
    if rules is None:
        return reasons
    broken = rules.broken(strategy.degrees)
    found = tuple(dict.fromkeys((*reasons, *broken)))
    return found or rules.unfit(strategy.degrees)


def nearest_strategy(simulator: Simulator, to: str) -> Nearest:
    """The best feasible strategy that a target would run."""
    spaces = TARGETS[to].spaces
    return _of_spaces(simulator, to) if spaces else _at_own_choices(simulator, to)


def _of_spaces(simulator: Simulator, to: str) -> Nearest:
    """The best of the proven optima of the parts of the space that a target takes."""
    found, why = Nearest(why_none="it takes no part of the space"), ""
    keys = {v.key for v in simulator.variables}
    for fixed, pinned in TARGETS[to].spaces:
        pins = {k: c for k, c in pinned.items() if k in keys}
        try:
            inner = make_simulator(
                simulator.graph, simulator.cluster, simulator.workload, fixed=dict(fixed), pinned=pins
            )
            best = solve(inner, algorithm="exact")
        except AutoshardError as error:  # nothing fits, or the model has no such choice
            why = why or str(error)
            continue
        strategy = inner.strategy(best.point, best.dims)
        reasons = TARGETS[to].reasons(simulator.graph, strategy)
        if reasons:
            why = why or reasons[0]
        elif best.found > found.tokens_per_s_per_gpu:
            found = Nearest(strategy=strategy, tokens_per_s_per_gpu=best.found)
    return found if found.strategy is not None else Nearest(why_none=why)


def _at_own_choices(simulator: Simulator, to: str) -> Nearest:
    """The best of all degree points at the choices that a target makes there."""
    graph = simulator.graph
    rules = engine_rules(to, graph, simulator.cluster, simulator.workload)
    points: dict[tuple[int, ...], list[int]] = {}
    p = simulator.points
    for i in range(len(p)):
        points.setdefault((int(p.pp[i]), int(p.dp[i]), int(p.tp[i]), int(p.ep[i])), []).append(i)
    found: list[tuple[float, int, tuple[int, ...]]] = []
    refused: Counter[str] = Counter()
    for members in points.values():
        degrees = p.degrees(members[0])
        strategy = TARGETS[to].strategy(graph, degrees)
        broken = () if rules is None else rules.broken(degrees)
        if strategy is None or broken:
            why = broken or TARGETS[to].reasons(graph, pattern_strategy(graph, degrees, "megatron"))
            refused.update(why[:1])
            continue
        try:
            chosen = tuple(v.choices.index(strategy.choice(v.key)) for v in simulator.variables)
        except ValueError:
            continue
        dims = np.tile(np.array(chosen, dtype=np.int64), (len(members), 1))
        rates = simulator.evaluate(np.array(members), dims).tokens_per_s / simulator.cluster.num_devices
        at = int(np.argmax(rates))
        if rates[at] > 0:
            found.append((float(rates[at]), members[at], chosen))
        else:
            refused[f"what it would run does not fit in a {simulator.cluster.device.name} or keep the limits"] += 1
    for rate, point, options in sorted(found, reverse=True):
        unfit = () if rules is None else rules.unfit(p.degrees(point))
        if not unfit:
            return Nearest(strategy=simulator.strategy(point, options), tokens_per_s_per_gpu=rate)
        refused.update(unfit)
    return Nearest(why_none=f"mostly: {refused.most_common(1)[0][0]}" if refused else "there is no degree point")
