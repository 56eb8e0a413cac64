"""Routed experts: always split over ep on the expert dim; within it, {0, 1, none} over etp like any matrix.

The yield is over etp only. What the down matrix yields is besides always a partial sum over ep, because a rank only
adds its own experts' share; `autoshard.sharding.moe` brings both together.

Weights quantised by blocks are split between blocks only, so that a scale never serves two ranks.

Experts that do not divide are filled up with some that no token is sent to: the ranks have as many each, the last ranks
fewer real ones.

Experts that the model's own code runs are in ``own_experts``.
"""

from autoshard.ir import ExpertsLinear
from autoshard.sharding.layout import P, R, S, TensorAxes
from autoshard.sharding.option import Option, Pad, ParamSharding


def is_stacked(op: ExpertsLinear) -> bool:
    """Whether all experts' matrices are one tensor with the expert dim first, used as one."""
    return op.form == "routed" and all(
        p.role != "slice" and len(p.shape) == (3 if p.role == "weight" else 2) for p in op.params
    )


def options(op: ExpertsLinear, axes: TensorAxes) -> tuple[Option, ...]:
    """Choices of one matrix of stacked experts over ``axes`` (etp)."""
    axis = axes.shard
    expert = ParamSharding(axis="ep", dim=0)
    out_dim, in_dim = (2, 1) if op.transposed else (1, 2)

    packed, unit = (1, op.packed) if op.interleaved else (op.packed, 1)

    def placed(choice: int) -> tuple[tuple[ParamSharding, ...], ...]:
        found = []
        for p in op.params:
            if p.role == "bias":
                own = (ParamSharding(axis=axis, dim=1, packed=packed, grain=(1, unit)),)
                found.append((expert, *own) if choice == 0 else (expert,))
            elif choice == 0:
                found.append((expert, ParamSharding(axis=axis, dim=out_dim, packed=packed, grain=(1, unit))))
            else:
                found.append((expert, ParamSharding(axis=axis, dim=in_dim)))
        return tuple(found)

    def whole_blocks(width: int, block: int, name: str) -> tuple[int, str, str]:
        if block == 1:
            return width, axis, name
        count = width // block if width % block == 0 else 1  # a block that straddles the end is not split from others
        return count, axis, f"blocks of {block} of {name}"

    out_block, in_block = op.blocks
    padded = Pad("experts", "always")
    # Weights that are quantised by blocks have their own unit, and activations none that fits to it.
    plain = op.blocks == (1, 1)
    second = (R,) * (len(op.inputs) - 1)  # the router's scores
    whole = (op.experts.size, "ep", "experts")
    return (
        Option(
            choice=0,
            needs=(R, *second),
            yields=S,
            params=placed(0),
            divides=(whole, whole_blocks(op.out_dim.size // op.packed, out_block, op.out_dim.name)),  # type: ignore[arg-type]
            split_out=axis,
            pads=(padded, *((Pad(op.out_dim.name, "asked"),) if plain else ())),
        ),
        Option(
            choice=1,
            needs=(S, *second),
            yields=P,
            params=placed(1),
            divides=(whole, whole_blocks(op.in_dim.size, in_block, op.in_dim.name)),  # type: ignore[arg-type]
            split_in=axis,
            pads=(padded, *((Pad(op.in_dim.name, "asked"),) if plain else ())),
        ),
        Option(
            choice=None,
            needs=(R, *second),
            yields=R,
            params=tuple((expert,) for _ in op.params),
            divides=(whole,),  # type: ignore[arg-type]
            pads=(padded,),
        ),
    )
