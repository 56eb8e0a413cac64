"""Deals the layers of a solution's pipeline stages by time and bytes, after the search.

Search and optimum are over even partitions: with another partition for every strategy, the slowest stage would no
longer be a maximum of a few known sums. So stages are balanced for the strategy that was taken, and the partition is
kept where the simulator, asked again, says that the same degrees, batch and choices are faster with it. The proven
optimum stays that of even partitions. Other degrees that a plan names are dealt likewise and ranked after that; where
one of them is then the fastest of all, it is the plan.
"""

from dataclasses import dataclass, replace

import numpy as np

from autoshard.api.solve import NUM_ALTERNATIVES, Solution, degree_kinds
from autoshard.simulator import Simulator
from autoshard.simulator.balance import balanced_stages

LEAST_GAIN = 1e-6
"""Gain below which the even partition is kept, which more programs can run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dealt:
    """The strategy of a solution in the simulator of its partition; ``gain`` is relative to the even partition.

    ``gain`` is None where stages were not balanced: a single one, dealt by hand, or the even partition is as good.
    """

    simulator: Simulator
    point: int
    dims: tuple[int, ...]
    gain: float | None


def as_solved(solution: Solution) -> Dealt:
    """The solution with the stages it was searched with."""
    return Dealt(simulator=solution.simulator, point=solution.point, dims=solution.dims, gain=None)


def deal(solution: Solution) -> Dealt:
    """The solution with balanced stages where they are faster, otherwise as it was solved."""
    return balance(as_solved(solution))


def balance(even: Dealt) -> Dealt:
    """A strategy with balanced stages where they are faster, otherwise as it was."""
    sim = even.simulator
    degrees = sim.points.degrees(even.point)
    if degrees.pp == 1 or sim.stages:
        return even
    counts = stages_for(sim, even.point, even.dims)
    held = {n: getattr(degrees, n) for n in ("pp", "dp", "tp", "ep", "etp", "replicas")}
    balanced = Simulator(
        sim.graph,
        sim.cluster,
        sim.workload,
        fixed={**sim.fixed, **held},
        pinned=sim.pinned,
        formats=sim.formats,
        stages=counts,
        uneven=sim.uneven,
        wider=sim.wider,
    )
    at = np.flatnonzero(balanced.points.batch == degrees.batch)
    if not len(at):
        return even
    chosen = zip(sim.variables, even.dims, balanced.variables, strict=True)
    dims = tuple(mine.choices.index(variable.choices[option]) for variable, option, mine in chosen)
    found = replace(even, simulator=balanced, point=int(at[0]), dims=dims)
    gain = _rate(found) / _rate(even) - 1.0
    return replace(found, gain=gain) if gain > LEAST_GAIN else even


def others(solution: Solution, *, even: bool = False) -> tuple[tuple[Solution, Dealt], ...]:
    """The best other degrees at their proven batch and choices, each dealt (or ``even``), fastest first."""
    if solution.exact is None:
        return ()
    kinds, exact = degree_kinds(solution.simulator.points), solution.exact
    points = [i for i in exact.best_points if kinds[i] != kinds[solution.point]][:NUM_ALTERNATIVES]
    found = []
    for i in points:
        other = replace(solution, point=int(i), dims=exact.dims_of[i], taken_from="exact")
        found.append((other, as_solved(other) if even else deal(other)))
    return tuple(sorted(found, key=lambda pair: -_rate(pair[1])))


def fastest(
    solution: Solution, dealt: Dealt, rest: tuple[tuple[Solution, Dealt], ...]
) -> tuple[Solution, Dealt, tuple[tuple[Solution, Dealt], ...]]:
    """The fastest of a solution and the ``rest`` once all are dealt, and the others, fastest first."""
    if not rest or rest[0][1].gain is None or _rate(rest[0][1]) <= _rate(dealt) * (1.0 + LEAST_GAIN):
        return solution, dealt, rest
    first, *after = rest
    return *first, tuple(sorted([*after, (solution, dealt)], key=lambda pair: -_rate(pair[1])))


def stages_for(simulator: Simulator, point: int, dims: tuple[int, ...]) -> tuple[int, ...]:
    """Layers of each stage, balanced by the seconds and bytes that a strategy's parts take in the simulator."""
    at, options = np.array([point]), np.array([dims], dtype=np.int64)
    part_s = np.concatenate([part.seconds(at, options) for part in simulator.parts])
    part_bytes = np.concatenate([sum(part.num_bytes(at, options)) for part in simulator.parts])
    room = simulator.capacity_bytes - float(simulator.fixed_bytes(at)[0])
    return balanced_stages(simulator.graph.layers, part_s, part_bytes, int(simulator.points.pp[point]), room)


def _rate(dealt: Dealt) -> float:
    e = dealt.simulator.evaluate(np.array([dealt.point]), np.array([dealt.dims], dtype=np.int64))
    return float(e.tokens_per_s[0])
