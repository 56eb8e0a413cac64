"""Reading a strategy as exporters need it: which steps really run, and what every block is called."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from autoshard.ir import Block, ExpertsLinear, OpGraph
from autoshard.sharding import (
    RESIDUAL,
    Layout,
    ResolvedOp,
    Step,
    Strategy,
    mesh_of,
    paddings,
    resolve_graph,
    strategy_reasons,
)
from autoshard.sharding.legality import axis_sizes, choice_key, choice_keys
from autoshard.sharding.rules.experts import is_stacked


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A strategy resolved on a graph; steps along axes of one rank are left out."""

    graph: OpGraph
    strategy: Strategy
    sizes: dict[str, int]
    resolved: dict[str, tuple[ResolvedOp, ...]]

    @staticmethod
    def of(graph: OpGraph, strategy: Strategy) -> "Reading":
        """Resolve a legal strategy."""
        return Reading(
            graph=graph,
            strategy=strategy,
            sizes=axis_sizes(mesh_of(graph, strategy.degrees)),
            resolved=resolve_graph(graph, strategy),
        )

    def items(self) -> Iterator[tuple[Block, ResolvedOp]]:
        """Every fused op with its block, once however often the block repeats."""
        for block in self.graph.components():
            for item in self.resolved[block.name]:
                yield block, item

    def live(self, steps: tuple[Step, ...]) -> tuple[Step, ...]:
        """The steps along axes of more than one rank."""
        return tuple(s for s in steps if self.sizes[s.axis] > 1)

    def entry(self, item: ResolvedOp) -> tuple[Step, ...]:
        """Live steps before an op, on any of its inputs."""
        return tuple(s for steps in item.entry for s in self.live(steps))

    def exit(self, item: ResolvedOp) -> tuple[Step, ...]:
        """Live steps after an op."""
        return self.live(item.exit)

    def internal(self, item: ResolvedOp) -> tuple[Step, ...]:
        """Live steps inside an op."""
        return () if item.option is None else self.live(item.option.internal)


def unknown_choices(
    graph: OpGraph, strategy: Strategy, known: tuple[str, ...] = (), padded: tuple[str, ...] = ()
) -> tuple[str, ...]:
    """Choices of the whole model (``model/...``), the residual's apart, that an exporter was not told about.

    So are dims that a strategy fills up, but for those in ``padded``, which the target fills up itself.
    """
    ops = {f"{b.name}/{op.name}" for b, op in graph.all_ops()}
    filled = {} if strategy_reasons(graph, strategy) else paddings(graph, strategy)
    odd = [(key, d) for key, dims in filled.items() for d in dims if d.dim not in padded]
    own = [
        f"experts of {op.fqn} are run by the model's own code, and split"
        for block, op in graph.all_ops()
        if isinstance(op, ExpertsLinear)
        and not is_stacked(op)
        and (strategy.degrees.ep > 1 or strategy.choice(choice_key(graph, block, op)) is not None)
    ]
    return (
        *own[:1],
        *(f"{key} fills up {d.dim} {d.size} to {d.to} over {d.axis}; it splits what divides" for key, d in odd[:1]),
        *_unknown(strategy, ops, known),
    )


def _unknown(strategy: Strategy, ops: set[str], known: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(
        f"{key}={choice} has no equivalent"
        for key, choice in strategy.choices
        if choice is not None and key not in ops and key != RESIDUAL and key not in known
    )


def residual_reasons(strategy: Strategy) -> tuple[str, ...]:
    """A reason if the residual is sharded in any way."""
    if strategy.residual is Layout.REPLICATED and strategy.choice(RESIDUAL) is None:
        return ()
    return ("the residual stream is sharded, here it is whole on every rank",)


def generic(name: str) -> str:
    """A module or parameter name with every number replaced by ``*``."""
    return re.sub(r"\.\d+(?=\.|$)", ".*", name)


def keys_of(graph: OpGraph) -> tuple[str, ...]:
    """Keys of the ops' choices, without those of the whole model."""
    ops = {f"{b.name}/{op.name}" for b, op in graph.all_ops()}
    return tuple(k for k in choice_keys(graph) if k in ops)
