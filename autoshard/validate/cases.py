"""Which strategies to run on a few ranks: the plan's own pattern at scaled degrees, then every pattern of the space."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

from autoshard.ir import OpGraph
from autoshard.sharding import Degrees, Strategy, degree_reasons, mesh_of
from autoshard.sharding.legality import axis_sizes, choice_key, expert_counts, model_choices, option_illegal
from autoshard.sharding.option import Choice
from autoshard.sharding.patterns import PATTERNS, pattern_strategy
from autoshard.sharding.space import free_ops, options
from autoshard.sharding.strategy import DISPATCH, RESIDUAL
from autoshard.validate.job import Case

_SCALED = ("dp", "tp", "ep", "etp")


def scale_degrees(graph: OpGraph, degrees: Degrees, nproc: int) -> tuple[Degrees, tuple[str, ...]]:
    """Degrees for ``nproc`` ranks that keep the shape of ``degrees``, and what could not be kept.

    Among all legal (dp, tp, ep, etp) on nproc ranks, the one with fewest degrees above one lost, then none gained, then
    the nearest ratios (log scale). pp becomes 1: stages are planned, not yet run.
    """
    candidates = list(legal_degrees(graph, nproc))

    def distance(d: Degrees) -> tuple[int, int, float]:
        pairs = [(getattr(degrees, n), getattr(d, n)) for n in _SCALED]
        lost = sum(a > 1 and b == 1 for a, b in pairs)
        gained = sum(a == 1 and b > 1 for a, b in pairs)
        shift = math.log(nproc / degrees.group)
        return lost, gained, sum(abs(math.log(b / a) - shift / 2) for a, b in pairs)

    best = min(candidates, key=distance)
    notes = [
        f"{n}={getattr(degrees, n)} of the plan is 1 on {nproc} ranks"
        for n in _SCALED
        if getattr(degrees, n) > 1 and getattr(best, n) == 1
    ]
    if degrees.pp > 1:
        notes.append(f"pp={degrees.pp} of the plan is 1: pipeline stages are planned, not yet run")
    return best, tuple(notes)


def legal_degrees(graph: OpGraph, nproc: int) -> Iterator[Degrees]:
    """All legal degrees of one stage of ``nproc`` ranks; a dense model has ep = dp."""
    divisors = [d for d in range(1, nproc + 1) if nproc % d == 0]
    for tp in divisors:
        for ep in divisors:
            dp, etp = nproc // tp, nproc // ep
            if (dp % ep == 0 or ep % dp == 0) and not degree_reasons(graph, pp=1, dp=dp, tp=tp, ep=ep):
                yield Degrees(dp=dp, tp=tp, ep=ep, etp=etp, batch=dp)


def plan_case(graph: OpGraph, strategy: Strategy, nproc: int, *, name: str = "plan") -> Case:
    """The choices of ``strategy`` on the (reduced) ``graph`` at degrees scaled to ``nproc``.

    A choice that the scaled degrees or the reduced widths do not offer becomes "replicated", and the case says so.
    """
    degrees, scaled = scale_degrees(graph, strategy.degrees, nproc)
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
            why = option_illegal(legal[wanted], sizes, layout, op) if wanted in legal else "the op has no such choice"
            if wanted is not None and why is not None:
                notes.append(f"choice {wanted} of {key} is not offered on {nproc} ranks: {why}")
            chosen[key] = wanted if why is None else None
    return Case(name=name, strategy=Strategy(degrees=degrees, choices=tuple(chosen.items())), notes=tuple(notes))


_RESIDUALS: Mapping[Choice, str] = {None: "", 0: "/sharded_residual", 1: "/split_tokens"}
"""The residual's layouts, and how they are called in the name of a case."""


def pattern_cases(graph: OpGraph, nproc: int) -> Iterator[Case]:
    """Every named pattern over tp, EP, EP x expert-TP and attention DP, as far as ``nproc`` ranks allow."""
    points = {"tp": Degrees(tp=nproc, etp=nproc)}
    if expert_counts(graph):
        half = nproc // 2
        points["ep"] = Degrees(tp=nproc, ep=nproc)
        if nproc % 2 == 0 and half > 1:
            points["ep_x_etp"] = Degrees(tp=nproc, ep=half, etp=2)
            points["attention_dp_ep"] = Degrees(dp=2, tp=half, ep=nproc, batch=2)
            points["attention_dp_ep_x_etp"] = Degrees(dp=nproc, ep=half, etp=2, batch=nproc)
    else:
        points["data_parallel"] = Degrees(dp=nproc, ep=nproc, batch=nproc)
        points["tp"] = Degrees(tp=nproc, ep=1, etp=nproc)
        if nproc % 2 == 0 and nproc > 2:
            points["dp_x_tp"] = Degrees(dp=2, tp=nproc // 2, ep=2, etp=nproc // 2, batch=2)
    for point, degrees in points.items():
        if degree_reasons(graph, pp=1, dp=degrees.dp, tp=degrees.tp, ep=degrees.ep):
            continue
        for pattern in PATTERNS:
            if pattern == "replicated":
                continue
            offered = model_choices(graph, axis_sizes(mesh_of(graph, degrees)))
            for residual, suffix in _RESIDUALS.items():
                # Split tokens meet the experts alike in all patterns but those over tp alone.
                if offered[RESIDUAL][residual] is None and (residual != 1 or pattern == "megatron" or point == "tp"):
                    strategy = pattern_strategy(graph, degrees, pattern, residual=residual)
                    yield Case(name=f"{point}/{pattern}{suffix}", strategy=strategy)
            # Where experts are whole on a rank, patterns differ outside of them only.
            if DISPATCH not in offered or offered[DISPATCH][0] is not None:
                continue
            if degrees.etp > 1 or pattern == "megatron":
                strategy = pattern_strategy(graph, degrees, pattern, dispatch=0)
                yield Case(name=f"{point}/{pattern}/all_to_all", strategy=strategy)
            if pattern == "megatron" and offered[RESIDUAL][1] is None:
                strategy = pattern_strategy(graph, degrees, pattern, residual=1, dispatch=0)
                yield Case(name=f"{point}/{pattern}/split_tokens/all_to_all", strategy=strategy)


def default_cases(graph: OpGraph, nproc: int, plan: Strategy | None = None) -> tuple[Case, ...]:
    """The plan's own pattern first, then every named pattern at every kind of degrees."""
    own = () if plan is None else (plan_case(graph, plan, nproc),)
    return (*own, *pattern_cases(graph, nproc))


def at_batch(case: Case, sequences: int) -> Case:
    """The case with ``sequences`` in flight, a multiple of its dp."""
    strategy = replace(case.strategy, degrees=replace(case.strategy.degrees, batch=sequences))
    return case.model_copy(update={"strategy": strategy})
