"""How every serving engine shards a model: Megatron's pattern, with what engines keep whole.

vLLM, SGLang, TensorRT-LLM and Megatron-core all split q, k, v, gate and up by their outputs, o and down by their
inputs, embedding and head by the vocabulary, experts over (ep, expert tp), and keep norms, routers and the latent
down-projections (q_a, kv_a) whole. None has a switch per operator: a plan is theirs or it is not. Mixers without a
choice of their own (Mamba, linear attention) are sharded by each engine in its own way.
"""

from collections.abc import Callable
from dataclasses import dataclass

from autoshard.export.reading import keys_of, residual_reasons, unknown_choices
from autoshard.ir import Block, Embedding, FusedOp, LatentAttention, Linear, OpGraph
from autoshard.sharding import Choice, Degrees, Strategy, degree_reasons
from autoshard.sharding.legality import axis_sizes, choice_key, mesh_of, option_illegal
from autoshard.sharding.patterns import PATTERNS, role_of
from autoshard.sharding.space import free_ops, options
from autoshard.sharding.strategy import DISPATCH, RESIDUAL

MOST_NAMED = 3
"""Operators named in one reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """An engine's name for messages, and which degrees it can be told (a reason each for what it cannot)."""

    title: str
    degrees: Callable[[OpGraph, Degrees], tuple[str, ...]]

    def strategy(self, graph: OpGraph, degrees: Degrees) -> Strategy | None:
        """What it runs at these degrees, None if it refuses to start."""
        if self.degrees(graph, degrees) or _rules(graph, degrees):
            return None
        chosen, broken = choices(graph, degrees)
        return None if broken else Strategy(degrees=degrees, choices=tuple(chosen.items()))

    def reasons(self, graph: OpGraph, strategy: Strategy) -> tuple[str, ...]:
        """Why it cannot run a strategy."""
        found = [*residual_reasons(strategy), *unknown_choices(graph, strategy, known=(DISPATCH,), padded=("vocab",))]
        found += [*self.degrees(graph, strategy.degrees), *_rules(graph, strategy.degrees)]
        if found:
            return tuple(found)
        chosen, broken = choices(graph, strategy.degrees)
        if broken:
            return broken
        other = [k for k in keys_of(graph) if strategy.choice(k) != chosen.get(k)]
        if not other:
            return ()
        named = ", ".join(
            f"{k}={_text(strategy.choice(k))} (it runs {_text(chosen.get(k))})" for k in other[:MOST_NAMED]
        )
        more = f" and {len(other) - MOST_NAMED} more" if len(other) > MOST_NAMED else ""
        return (f"it has no switch per operator: {named}{more}",)


def choices(graph: OpGraph, degrees: Degrees) -> tuple[dict[str, Choice], tuple[str, ...]]:
    """The engines' choice of every operator at degrees, and which widths they could not split."""
    sizes = axis_sizes(mesh_of(graph, degrees))
    layout = Strategy(degrees=degrees, choices=()).residual
    chosen: dict[str, Choice] = {RESIDUAL: None}  # how tokens reach their experts is the engine's own affair
    broken: list[str] = []
    for block in graph.components():
        for op in free_ops(block):
            wanted = _wanted(block, op)
            offered = {o.choice: o for o in options(block, op)}
            if wanted not in offered:
                wanted = None
            why = None if wanted is None else option_illegal(offered[wanted], sizes, layout, op)
            if why is not None:
                # The vocabulary is padded; what is split over one rank is whole.
                if "same as" not in why and not (isinstance(op, Embedding) or getattr(op, "is_head", False)):
                    broken.append(f"{block.name}/{op.name}: {why}")
                wanted = None
            chosen.setdefault(choice_key(graph, block, op), wanted)
    return chosen, tuple(broken)


def _wanted(block: Block, op: FusedOp) -> Choice:
    role = role_of(block, op)
    if role == "in" and isinstance(op, Linear) and _feeds_latent(block, op):
        return None
    return PATTERNS["megatron"].get(role)


def _feeds_latent(block: Block, op: Linear) -> bool:
    """Whether a matrix makes a latent: what latent attention reads beside its heads, or what q_b and kv_b expand."""
    cores = [o for o in block.ops if isinstance(o, LatentAttention)]
    if not cores:
        return False
    made = {o.name: o for o in block.ops}
    heads = {n for core in cores for n in core.inputs[:2]}
    whole = {n for core in cores for n in core.inputs[2:]}
    frontier = [made[n] for n in heads if n in made]
    while frontier:
        for source in frontier.pop().inputs:
            if source in made and made[source].kind in ("norm", "linear") and source not in whole:
                whole.add(source)
                frontier.append(made[source])
    return op.name in whole and op.name not in heads


def _rules(graph: OpGraph, d: Degrees) -> tuple[str, ...]:
    return tuple(r.message for r in degree_reasons(graph, pp=d.pp, dp=d.dp, tp=d.tp, ep=d.ep))


def _text(choice: Choice) -> str:
    return "none" if choice is None else str(choice)
