"""The list of collectives of a strategy: what the simulator charges for and the ranks must be seen to run."""

from collections.abc import Mapping
from dataclasses import dataclass

from autoshard.ir import ExpertsLinear, OpGraph
from autoshard.sharding.flow import ResolvedOp, block_residual, resolve_block
from autoshard.sharding.layout import Step, step_rows
from autoshard.sharding.legality import axis_sizes, chosen_options, mesh_of
from autoshard.sharding.moe import StagePattern
from autoshard.sharding.strategy import Strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """One collective of one fused op, ``count`` times (once per repeat of its block) in a forward pass.

    ``num_bytes`` is the payload per call as `Step` defines it; ``group_size`` the ranks of one group along ``axis``.
    """

    kind: str
    axis: str
    group_size: int
    num_bytes: int
    count: int
    where: str


def step_bytes(
    step: Step,
    sizes: Mapping[str, int],
    *,
    tokens: int,
    top_k: int,
    activation_bytes: float,
    rows: int | None = None,
) -> int:
    """Payload bytes of a step at given axis sizes; every division is exact for a legal strategy.

    ``rows`` stands for the rows that follow from ``tokens``, where it is known how many there are.
    """
    if rows is None:
        rows = step_rows(step, sizes, tokens=tokens, top_k=top_k)
    total: float = rows * step.row_bytes(activation_bytes, sizes)
    for axis in step.split:
        total /= sizes[axis]
    return round(total)


def resolve_graph(graph: OpGraph, strategy: Strategy) -> dict[str, tuple[ResolvedOp, ...]]:
    """Layouts and steps of every component, by block name."""
    d = strategy.degrees
    pattern = StagePattern.of(d.dp, d.ep, d.etp, exchange=strategy.exchange)
    return {
        block.name: resolve_block(
            block,
            chosen_options(graph, block, strategy),
            block_residual(graph, block, strategy.residual),
            pattern,
        )
        for block in graph.components()
    }


def collectives(
    graph: OpGraph, strategy: Strategy, *, tokens: int, activation_bytes: float, logit_tokens: int | None = None
) -> tuple[Collective, ...]:
    """Collectives of one forward pass in which every dp rank has ``tokens`` tokens.

    The epilogue sees ``logit_tokens`` of them (all, when None). Steps over an axis of size one do not happen.
    """
    sizes = axis_sizes(mesh_of(graph, strategy.degrees))
    found = []
    resolved = resolve_graph(graph, strategy)
    for block in graph.components():
        here = logit_tokens if logit_tokens is not None and block is graph.epilogue else tokens
        top_k = max((op.top_k for op in block.ops if isinstance(op, ExpertsLinear)), default=1)
        for item in resolved[block.name]:
            for step in item.steps():
                if step.kind == "slice" or sizes[step.axis] == 1:
                    continue
                found.append(
                    Collective(
                        kind=step.kind,
                        axis=step.axis,
                        group_size=sizes[step.axis],
                        num_bytes=step_bytes(step, sizes, tokens=here, top_k=top_k, activation_bytes=activation_bytes),
                        count=block.repeat,
                        where=f"{block.name}/{item.op.name}",
                    )
                )
    return tuple(found)
