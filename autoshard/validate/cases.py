"""Which strategies to run on a few ranks: the plan's own pattern at scaled degrees, then every pattern of the space."""

import math
from collections.abc import Iterator, Mapping

from autoshard.ir import OpGraph
from autoshard.sharding import Degrees, Strategy, degree_reasons, mesh_of
from autoshard.sharding.legality import axis_sizes, choice_key, expert_counts, model_choices, option_illegal
from autoshard.sharding.option import Choice
from autoshard.sharding.patterns import PATTERNS, pattern_strategy
from autoshard.sharding.space import free_ops, options
from autoshard.sharding.strategy import DISPATCH, RESIDUAL
from autoshard.validate.job import Case

_SCALED = ("pp", "dp", "tp", "ep", "etp")


def scale_degrees(
    graph: OpGraph, degrees: Degrees, nproc: int, *, uneven: bool = False
) -> tuple[Degrees, tuple[str, ...]]:
    """Degrees for ``nproc`` ranks that keep the shape of ``degrees``, and what could not be kept.

    Among all legal (pp, dp, tp, ep, etp) on nproc ranks, the one with fewest degrees above one lost, then none gained,
    then the nearest ratios (log scale).
    """
    stages = [pp for pp in _divisors(nproc) if pp == 1 or degrees.pp > 1]
    candidates = [d for pp in stages for d in legal_degrees(graph, nproc, pp, uneven=uneven)]

    def distance(d: Degrees) -> tuple[int, int, float]:
        pairs = [(getattr(degrees, n), getattr(d, n)) for n in _SCALED]
        lost = sum(a > 1 and b == 1 for a, b in pairs)
        gained = sum(a == 1 and b > 1 for a, b in pairs)
        shift = math.log(d.group / degrees.group)
        inside = sum(abs(math.log(b / a) - shift / 2) for a, b in pairs[1:])
        return lost, gained, inside + abs(math.log(d.pp / degrees.pp))

    best = min(candidates, key=distance)
    notes = [
        f"{n}={getattr(degrees, n)} of the plan is 1 on {nproc} ranks"
        for n in _SCALED
        if getattr(degrees, n) > 1 and getattr(best, n) == 1
    ]
    return best, tuple(notes)


def _divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]


def legal_degrees(graph: OpGraph, nproc: int, pp: int = 1, *, uneven: bool = False) -> Iterator[Degrees]:
    """All legal degrees of ``pp`` stages on ``nproc`` ranks together; a dense model has ep = dp."""
    group = nproc // pp
    for tp in _divisors(group):
        for ep in _divisors(group):
            dp, etp = group // tp, group // ep
            nested = dp % ep == 0 or ep % dp == 0
            if nested and not degree_reasons(graph, pp=pp, dp=dp, tp=tp, ep=ep, uneven=uneven):
                yield Degrees(pp=pp, dp=dp, tp=tp, ep=ep, etp=etp, batch=dp * pp)


def plan_case(graph: OpGraph, strategy: Strategy, nproc: int, *, name: str = "plan") -> Case:
    """The choices of ``strategy`` on the (reduced) ``graph`` at degrees scaled to ``nproc``.

    A choice that the scaled degrees or the reduced widths do not offer becomes "replicated", and the case says so.
    """
    degrees, scaled = scale_degrees(graph, strategy.degrees, nproc, uneven=strategy.uneven)
    notes = list(scaled)
    chosen: dict[str, Choice] = {}
    sizes = axis_sizes(mesh_of(graph, degrees))
    for key, offered in model_choices(graph, sizes).items():
        wanted = strategy.choice(key)
        why = offered.get(wanted, "the model has no such choice")
        if why is not None:
            notes.append(f"choice {wanted} of {key} is not offered on {nproc} ranks: {why}")
        chosen[key] = wanted if why is None else None
    layout = Strategy(degrees=degrees, choices=tuple(chosen.items())).residual
    for block in graph.components():
        for op in free_ops(block):
            key = choice_key(graph, block, op)
            wanted = strategy.choice(key)
            legal = {o.choice: o for o in options(block, op)}
            why = "the op has no such choice"
            if wanted in legal:
                why = option_illegal(legal[wanted], sizes, layout, op, uneven=strategy.uneven)
            if wanted is not None and why is not None:
                notes.append(f"choice {wanted} of {key} is not offered on {nproc} ranks: {why}")
            chosen[key] = wanted if why is None else None
    scaled_strategy = Strategy(degrees=degrees, choices=tuple(chosen.items()), uneven=strategy.uneven)
    return Case(name=name, strategy=scaled_strategy, notes=tuple(notes))


def pattern_points(graph: OpGraph, nproc: int) -> dict[str, Degrees]:
    """Named degrees of one stage over ``nproc`` ranks: tp, EP, EP x expert-TP and attention DP, where possible."""
    if not expert_counts(graph):
        points = {"tp": Degrees(tp=nproc, ep=1, etp=nproc), "data_parallel": Degrees(dp=nproc, ep=nproc, batch=nproc)}
        if nproc % 2 == 0 and nproc > 2:
            points["dp_x_tp"] = Degrees(dp=2, tp=nproc // 2, ep=2, etp=nproc // 2, batch=2)
        return points
    points = {"tp": Degrees(tp=nproc, etp=nproc), "ep": Degrees(tp=nproc, ep=nproc)}
    half = nproc // 2
    if nproc % 2 == 0 and half > 1:
        points["ep_x_etp"] = Degrees(tp=nproc, ep=half, etp=2)
        points["attention_dp_ep"] = Degrees(dp=2, tp=half, ep=nproc, batch=2)
        points["attention_dp_ep_x_etp"] = Degrees(dp=nproc, ep=half, etp=2, batch=nproc)
    return points


def pipeline_points(graph: OpGraph, nproc: int) -> dict[str, Degrees]:
    """Named degrees of two stages over ``nproc`` ranks, and of as many stages as there are ranks."""
    points: dict[str, Degrees] = {}
    half = nproc // 2
    if nproc == 2:
        points["pp2"] = Degrees(pp=2, batch=2)
    elif nproc % 2 == 0:
        points["pp2_x_tp"] = Degrees(pp=2, tp=half, ep=1, etp=half, batch=2)
        points["pp2_x_dp"] = Degrees(pp=2, dp=half, ep=half, batch=nproc)
        if expert_counts(graph):
            points["pp2_x_ep"] = Degrees(pp=2, tp=half, ep=half, batch=2)
        points["pp"] = Degrees(pp=nproc, batch=nproc)
    return points


_RESIDUALS: Mapping[Choice, str] = {None: "", 0: "/sharded_residual", 1: "/split_tokens"}
"""The residual's layouts, and how they are called in the name of a case."""


def pattern_cases(graph: OpGraph, nproc: int) -> Iterator[Case]:
    """Every named pattern at every named point of one stage, then Megatron's at those of several."""
    for point, degrees in pattern_points(graph, nproc).items():
        for pattern in PATTERNS:
            if pattern != "replicated":
                yield from _pattern_case(graph, point, degrees, pattern)
    yield from pipeline_cases(graph, nproc)


def pipeline_cases(graph: OpGraph, nproc: int) -> Iterator[Case]:
    """Megatron's pattern in stages, at every named point of more than one."""
    for point, degrees in pipeline_points(graph, nproc).items():
        yield from _pattern_case(graph, point, degrees, "megatron")


def _pattern_case(graph: OpGraph, point: str, degrees: Degrees, pattern: str) -> Iterator[Case]:
    """A pattern at a point where it is legal, in every layout of the residual, and with tokens exchanged."""
    if degree_reasons(graph, pp=degrees.pp, dp=degrees.dp, tp=degrees.tp, ep=degrees.ep):
        return
    offered = model_choices(graph, axis_sizes(mesh_of(graph, degrees)), pp=degrees.pp)
    for residual, suffix in _RESIDUALS.items():
        # Split tokens meet the experts alike in all patterns but those over tp alone.
        if offered[RESIDUAL][residual] is None and (residual != 1 or pattern == "megatron" or point == "tp"):
            strategy = pattern_strategy(graph, degrees, pattern, residual=residual)
            yield Case(name=f"{point}/{pattern}{suffix}", strategy=strategy)
    # Where experts are whole on a rank, patterns differ outside of them only.
    if DISPATCH not in offered or offered[DISPATCH][0] is not None:
        return
    if degrees.etp > 1 or pattern == "megatron":
        strategy = pattern_strategy(graph, degrees, pattern, dispatch=0)
        yield Case(name=f"{point}/{pattern}/all_to_all", strategy=strategy)
    if pattern == "megatron" and offered[RESIDUAL][1] is None:
        strategy = pattern_strategy(graph, degrees, pattern, residual=1, dispatch=0)
        yield Case(name=f"{point}/{pattern}/split_tokens/all_to_all", strategy=strategy)


def default_cases(graph: OpGraph, nproc: int, plan: Strategy | None = None) -> tuple[Case, ...]:
    """The plan's own pattern first, then every named pattern at every kind of degrees, pipelines last."""
    own = () if plan is None else (plan_case(graph, plan, nproc),)
    return (*own, *pattern_cases(graph, nproc))
