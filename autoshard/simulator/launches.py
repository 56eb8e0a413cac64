"""What an engine launches as one: products of the same tensor, reductions of sums that are only added."""

from collections.abc import Mapping

from autoshard.ir import Add, Block, ExpertsLinear, FusedOp, Linear
from autoshard.sharding.layout import Axis
from autoshard.sharding.padding import PLAIN, Grain
from autoshard.sharding.space import consumers, output_grain, tensor_axes

Merged = Mapping[str, tuple[tuple[Linear, Axis, Grain], ...]]
"""By op name, products that run as one (itself included), with their outputs' axes and pieces for filling up."""


def merged_products(block: Block) -> Merged:
    """The products that an engine runs as one.

    q, k and v; gate and up; the down-projections of latent attention. A head is never merged.
    """
    by_input: dict[str, list[Linear]] = {}
    for op in block.ops:
        if isinstance(op, Linear) and not op.is_head:
            by_input.setdefault(op.inputs[0], []).append(op)
    groups = [group for group in by_input.values() if len(group) > 1]
    each = {
        op.name: (op, tensor_axes(block, op).shard, output_grain(block, op) or PLAIN)
        for group in groups
        for op in group
    }
    return {op.name: tuple(each[o.name] for o in group) for group in groups for op in group}


def joins_experts(block: Block, op: FusedOp | None) -> bool:
    """Whether an op's output is only added to that of the routed experts: engines add first and reduce once."""
    if not isinstance(op, Linear):
        return False
    readers = [reader for reader, _ in consumers(block, op.name)]
    made = {o.name: o for o in block.ops}
    return len(readers) == 1 and all(
        isinstance(r, Add) and any(isinstance(made.get(name), ExpertsLinear) for name in r.inputs) for r in readers
    )
