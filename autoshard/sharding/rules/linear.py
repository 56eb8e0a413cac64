"""A matrix: the paper's {0, 1, none}.

0 splits the rows of the weight: the full input is needed, the output comes out sharded. 1 splits its columns: a
sharded input is enough, the output is a partial sum (a bias is added after the sum). none: everything on every rank.

The matrix that expands the latent of an MLA is not split by its columns: modules reshape the latent, between its norm
and this matrix, at its whole width.
"""

from autoshard.ir import Linear
from autoshard.sharding.layout import P, R, S, TensorAxes
from autoshard.sharding.option import Option, ParamSharding


def options(op: Linear, axes: TensorAxes) -> tuple[Option, ...]:
    """Choices of a linear whose output lives on ``axes``."""
    out, inner = axes.shard, axes.full
    rows = tuple((ParamSharding(axis=out, dim=0, packed=op.packed),) for _ in op.params)
    columns = tuple((ParamSharding(axis=inner, dim=1),) if p.role == "weight" else () for p in op.params)
    rowwise = Option(
        choice=1,
        needs=(S,),
        yields=P,
        params=columns,
        divides=((op.in_dim.size, inner, op.in_dim.name),),
        split_in=inner,
    )
    return (
        Option(
            choice=0,
            needs=(R,),
            yields=S,
            params=rows,
            divides=((op.out_dim.size // op.packed, out, op.out_dim.name),),
            split_out=out,
        ),
        *(() if op.in_dim.name == "kv_rank" else (rowwise,)),
        Option(choice=None, needs=(R,), yields=R, params=tuple(() for _ in op.params)),
    )
