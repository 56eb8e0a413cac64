"""Random legal strategies: every choice drawn among what is offered at random legal degrees."""

import random
from collections.abc import Iterator, Sequence

from autoshard.ir import OpGraph
from autoshard.sharding import Strategy, mesh_of, strategy_reasons
from autoshard.sharding.legality import axis_sizes, choice_key, model_choices, option_illegal
from autoshard.sharding.space import free_ops, options
from autoshard.validate.cases import legal_degrees


def random_strategies(
    graph: OpGraph, nproc: int, count: int, seed: int, stages: Sequence[int] = (1,), *, uneven: bool = False
) -> Iterator[Strategy]:
    """``count`` strategies on ``nproc`` ranks in any of these numbers of pipeline stages."""
    rng = random.Random(seed)
    points = [d for pp in stages for d in legal_degrees(graph, nproc, pp, uneven=uneven)]
    while count:
        degrees = rng.choice(points)
        sizes = axis_sizes(mesh_of(graph, degrees))
        offered = model_choices(graph, sizes, pp=degrees.pp)
        chosen = {key: rng.choice([c for c, why in o.items() if why is None]) for key, o in offered.items()}
        layout = Strategy(degrees=degrees, choices=tuple(chosen.items())).residual
        for block in graph.components():
            for op in free_ops(block):
                offered_here = options(block, op)
                legal = [o.choice for o in offered_here if option_illegal(o, sizes, layout, op, uneven=uneven) is None]
                chosen.setdefault(choice_key(graph, block, op), rng.choice(legal))
        strategy = Strategy(degrees=degrees, choices=tuple(chosen.items()), uneven=uneven)
        if not strategy_reasons(graph, strategy):
            count -= 1
            yield strategy
