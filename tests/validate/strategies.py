"""Random legal strategies: every choice drawn among what is offered at random legal degrees."""

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from autoshard.ir import OpGraph
from autoshard.sharding import Degrees, Strategy, mesh_of, strategy_reasons
from autoshard.sharding.legality import axis_sizes, choice_key, model_choices, option_illegal
from autoshard.sharding.space import free_ops, options
from autoshard.validate.cases import legal_degrees


def _points(graph: OpGraph, nproc: int, stages: Sequence[int], uneven: bool) -> list[Degrees]:
    return [d for pp in stages for d in legal_degrees(graph, nproc, pp, uneven=uneven)]


def pick_strategy(
    graph: OpGraph, points: Sequence[Degrees], pick: Callable[[Sequence[Any]], Any], *, uneven: bool = False
) -> Strategy:
    """A strategy of which ``pick`` picks the degrees, and every choice among those that are offered there."""
    degrees: Degrees = pick(points)
    sizes = axis_sizes(mesh_of(graph, degrees))
    offered = model_choices(graph, sizes, pp=degrees.pp)
    chosen = {key: pick([c for c, why in o.items() if why is None]) for key, o in offered.items()}
    layout = Strategy(degrees=degrees, choices=tuple(chosen.items())).residual
    for block in graph.components():
        for op in free_ops(block):
            key, here = choice_key(graph, block, op), options(block, op)
            if key not in chosen:
                legal = [o.choice for o in here if option_illegal(o, sizes, layout, op, uneven=uneven) is None]
                chosen[key] = pick(legal)
    return Strategy(degrees=degrees, choices=tuple(chosen.items()), uneven=uneven)


def random_strategies(
    graph: OpGraph, nproc: int, count: int, seed: int, stages: Sequence[int] = (1,), *, uneven: bool = False
) -> Iterator[Strategy]:
    """``count`` strategies on ``nproc`` ranks in any of these numbers of pipeline stages."""
    rng = random.Random(seed)
    points = _points(graph, nproc, stages, uneven)
    while count:
        strategy = pick_strategy(graph, points, rng.choice, uneven=uneven)
        if not strategy_reasons(graph, strategy):
            count -= 1
            yield strategy


def drawn_strategies(
    graph: OpGraph, nproc: int, count: int, number: int, stages: Sequence[int] = (1,)
) -> list[Strategy]:
    """``count`` different strategies as hypothesis draws them with seed ``number``; they run as one batch afterwards.

    A space of fewer gives all that hypothesis finds.
    """
    points = _points(graph, nproc, stages, False)
    found: dict[Strategy, None] = {}

    @st.composite
    def strategies(draw: st.DrawFn) -> Strategy:
        return pick_strategy(graph, points, lambda offered: draw(st.sampled_from(list(offered))))

    @seed(number)
    @settings(
        max_examples=2 * count,
        phases=[Phase.generate],
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(strategies())
    def collect(strategy: Strategy) -> None:
        assert not strategy_reasons(graph, strategy)
        found[strategy] = None

    collect()
    return list(found)[:count]
