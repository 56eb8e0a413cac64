"""A matrix: the paper's {0, 1, none}.

0 splits the rows of the weight: the full input is needed, the output comes out sharded. 1 splits its columns: a
sharded input is enough, the output is a partial sum (a bias is added after the sum). none: everything on every rank.

Rows of unequal parts side by side (q|k|v with fewer kv heads, gate|x|B|C|dt) have no single placement in DTensor: 0
keeps the weight whole and computes a rank's rows of every part; 1 shares the weight out as ever.

A linear whose parameters another module uses (the step sizes of a Mamba) is split by heads with the op it follows.

The matrix that expands the latent of an MLA is not split by its columns: modules reshape the latent, between its norm
and this matrix, at its whole width. Its rows go with the heads of the core (`autoshard.sharding.space.leader_of`).
"""

from autoshard.ir import Linear
from autoshard.sharding.layout import P, R, S, TensorAxes
from autoshard.sharding.option import Option, Pad, ParamSharding, by_heads
from autoshard.sharding.padding import PLAIN, Grain


def options(
    op: Linear, axes: TensorAxes, *, into: Grain | None = PLAIN, out_of: Grain | None = PLAIN
) -> tuple[Option, ...]:
    """Choices of a linear whose output lives on ``axes``.

    Columns of a width that does not divide are filled up in pieces of ``into``, rows in pieces of ``out_of``; None if
    they cannot be, because what reads or makes them counts them itself.
    """
    out, inner = axes.shard, axes.full
    whole = Option(choice=None, needs=(R,), yields=R, params=tuple(() for _ in op.params))
    if op.follows is not None:
        params = tuple(by_heads(p, out) for p in op.params)
        divides = ((op.out_dim.size, out, op.out_dim.name),)
        return (Option(choice=0, needs=(R,), yields=S, params=params, divides=divides, split_out=out), whole)
    rows = tuple((ParamSharding(axis=out, dim=0, packed=op.packed, grain=out_of or PLAIN),) for _ in op.params)
    column = ParamSharding(axis=inner, dim=1, grain=into or PLAIN)
    columns = tuple((column,) if p.role == "weight" else () for p in op.params)
    table = op.is_head and op.out_dim.name == "vocab"
    rowwise = Option(
        choice=1,
        needs=(S,),
        yields=P,
        params=columns,
        divides=((op.in_dim.size, inner, op.in_dim.name),),
        split_in=inner,
        pads=() if into is None else (Pad(op.in_dim.name, "asked", into),),
        grain=into or PLAIN,
    )
    return (
        Option(
            choice=0,
            needs=(R,),
            yields=S,
            params=tuple(() for _ in op.params) if op.parts else rows,
            divides=tuple((width, out, op.out_dim.name) for width in op.parts or (op.out_dim.size // op.packed,)),
            split_out=out,
            pads=() if out_of is None or op.parts else (Pad(op.out_dim.name, "always" if table else "asked", out_of),),
            grain=out_of or PLAIN,
        ),
        *(() if op.in_dim.name == "kv_rank" else (rowwise,)),
        whole,
    )
