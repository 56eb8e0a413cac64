"""Router: like a linear, but the choice of experts needs all scores, so it always delivers them replicated.

Scores travel in at least float32: many routers compute in it whatever the model's dtype, and where they do not, a sum
of parts rounded to bfloat16 would choose other experts than the unsharded model does.
"""

from autoshard.ir import Router
from autoshard.sharding.layout import R, S, Step, TensorAxes
from autoshard.sharding.option import Option, ParamSharding


def options(op: Router, axes: TensorAxes) -> tuple[Option, ...]:
    """Choices of a router over tokens on ``axes``."""
    axis = axes.shard
    gather = Step(kind="all_gather", axis=axis, rows="local", width=0, statistics=op.experts.size)
    reduce = Step(kind="all_reduce", axis=axis, rows="local", width=0, statistics=op.experts.size)
    rows = tuple(() if p.role == "correction" else (ParamSharding(axis=axis, dim=0),) for p in op.params)
    columns = tuple((ParamSharding(axis=axis, dim=1),) if p.role == "weight" else () for p in op.params)
    return (
        Option(
            choice=0,
            needs=(R,),
            yields=R,
            params=rows,
            internal=(gather,),
            divides=((op.experts.size, axis, "experts"),),
            split_out=axis,
        ),
        Option(
            choice=1,
            needs=(S,),
            yields=R,
            params=columns,
            internal=(reduce,),
            divides=((op.hidden.size, axis, "hidden"),),
            split_in=axis,
        ),
        Option(choice=None, needs=(R,), yields=R, params=tuple(() for _ in op.params)),
    )
