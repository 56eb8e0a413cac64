"""Which degrees and choices are legal for a model, each with the rule it breaks. Physics only, no engine's rules."""

from collections.abc import Mapping
from dataclasses import dataclass

from autoshard.errors import InvalidInputError
from autoshard.ir import Attention, Block, ExpertsLinear, FusedOp, LatentAttention, Norm, OpGraph, once_per_graph
from autoshard.sharding.cut import pipeline_obstacle
from autoshard.sharding.degrees import Degrees, StageMesh, kv_split, partition, stage_mesh
from autoshard.sharding.layout import Layout
from autoshard.sharding.moe import can_exchange, exchange_illegal
from autoshard.sharding.option import Choice, Option
from autoshard.sharding.padding import fits
from autoshard.sharding.rules.experts import is_stacked
from autoshard.sharding.space import (
    free_ops,
    heads_are_padded,
    leader_of,
    option_axis,
    options,
    own_experts_reason,
    sharded_residual_reason,
    split_tokens_reason,
)
from autoshard.sharding.strategy import DISPATCH, RESIDUAL, Strategy
from autoshard.sharding.wider import SEQUENCE, WIDER, follows_core, option_under


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """A rule that is broken: its name, the values, and one sentence."""

    rule: str
    values: tuple[tuple[str, int], ...]
    message: str


@once_per_graph
def attention_heads(graph: OpGraph) -> tuple[tuple[int, int], ...]:
    """Distinct (query heads, kv heads) of the model's attention cores; a latent one has as many of both."""
    found = {(op.heads.size, op.kv_heads.size) for _, op in graph.all_ops() if isinstance(op, Attention)}
    found |= {(op.heads.size, op.heads.size) for _, op in graph.all_ops() if isinstance(op, LatentAttention)}
    return tuple(sorted(found))


@once_per_graph
def heads_that_are_padded(graph: OpGraph) -> tuple[tuple[int, int], ...]:
    """Those of `attention_heads` that may be filled up in every core that has them."""
    found: dict[tuple[int, int], bool] = {}
    for block, op in graph.all_ops():
        if isinstance(op, Attention | LatentAttention):
            key = (op.heads.size, (op.kv_heads if isinstance(op, Attention) else op.heads).size)
            found[key] = found.get(key, True) and heads_are_padded(block, op)
    return tuple(key for key, padded in found.items() if padded)


@once_per_graph
def expert_counts(graph: OpGraph) -> tuple[int, ...]:
    """Distinct numbers of routed experts; empty for a dense model."""
    return tuple(sorted({op.experts.size for _, op in graph.all_ops() if isinstance(op, ExpertsLinear)}))


def kv_split_of(graph: OpGraph, tp: int) -> int:
    """How many ways tp splits the kv heads (all attention cores of a model split alike, or tp is illegal)."""
    return min((kv_split(tp, kv) for _, kv in attention_heads(graph)), default=tp)


def mesh_of(graph: OpGraph, degrees: Degrees) -> StageMesh:
    """The refined stage mesh of a model at given degrees."""
    return stage_mesh(degrees.dp, degrees.tp, degrees.ep, kv_split_of(graph, degrees.tp))


def _divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]


def _nearest(degree: int, allowed: list[int]) -> int:
    """The allowed degree closest to the one asked for, the smaller of two equally close."""
    return min(allowed, key=lambda d: (abs(d - degree), d))


def degree_reasons(graph: OpGraph, *, pp: int, dp: int, tp: int, ep: int, uneven: bool = False) -> tuple[Reason, ...]:
    """Every rule that these degrees break; empty when they are legal.

    Heads and kv heads must spread evenly (kv heads may be copied: tp a multiple of them) unless they may be filled up
    (``uneven``), every ep rank has an expert, a stage has at least one layer, and dp, ep and the kv split must nest.
    """
    found = []
    padded = heads_that_are_padded(graph) if uneven else ()
    for heads, kv in attention_heads(graph):
        if (heads, kv) in padded and fits(heads, tp, grain=(heads // kv, 1)):
            continue
        if heads % tp:
            best = _nearest(tp, _divisors(heads))
            found.append(
                Reason(
                    rule="heads % tp",
                    values=(("heads", heads), ("tp", tp)),
                    message=f"tp={tp} does not divide {heads} attention heads; nearest tp that does: {best}",
                )
            )
        elif kv % tp and tp % kv:
            best = _nearest(tp, [d for d in _divisors(heads) if kv % d == 0 or d % kv == 0])
            found.append(
                Reason(
                    rule="kv_heads vs tp",
                    values=(("kv_heads", kv), ("tp", tp)),
                    message=f"{kv} kv heads neither divide by tp={tp} nor divide it; nearest tp that works: {best}",
                )
            )
    for experts in expert_counts(graph):
        if experts % ep and not fits(experts, ep):
            best = _nearest(ep, _divisors(experts))
            message = (
                f"ep={ep} leaves some ranks without any of {experts} experts; nearest ep that divides them: {best}"
            )
            found.append(Reason(rule="experts vs ep", values=(("experts", experts), ("ep", ep)), message=message))
    found += _own_experts_reasons(graph, dp=dp, ep=ep)
    if not expert_counts(graph) and ep != dp:
        found.append(
            Reason(
                rule="dense ep",
                values=(("ep", ep), ("dp", dp)),
                message=f"ep={ep} on a model without experts; leave it out (it is dp={dp} by convention)",
            )
        )
    if pp > len(graph.layers):
        found.append(
            Reason(
                rule="layers vs pp",
                values=(("layers", len(graph.layers)), ("pp", pp)),
                message=f"pp={pp} stages for {len(graph.layers)} layers; at most {len(graph.layers)}",
            )
        )
    obstacle = pipeline_obstacle(graph) if pp > 1 else None
    if obstacle is not None:
        found.append(Reason(rule="pipeline", values=(("pp", pp),), message=f"pp={pp}: {obstacle}; only pp=1 works"))
    if not found:
        try:
            stage_mesh(dp, tp, ep, kv_split_of(graph, tp))
        except InvalidInputError as error:
            found.append(Reason(rule="mesh nesting", values=(("dp", dp), ("tp", tp), ("ep", ep)), message=str(error)))
    return tuple(found)


def _own_experts_reasons(graph: OpGraph, *, dp: int, ep: int) -> list[Reason]:
    """Rules of experts that the model's own code runs, where ep > 1."""
    values = (("dp", dp), ("ep", ep))
    for fqn, experts, why in _own_experts(graph) if ep > 1 else ():
        message: str | None = None
        if why is not None:
            message = f"ep={ep}, but experts of {fqn} cannot be told apart: {why}; only ep=1 works"
        elif dp > 1:
            message = f"ep={ep} with dp={dp}: the code that runs experts of {fqn} has its own tokens only; use dp=1"
        elif experts % ep:
            best = _nearest(ep, _divisors(experts))
            message = f"ep={ep} does not divide {experts} experts of {fqn}; nearest ep that does: {best}"
        if message is not None:
            return [Reason(rule="own experts", values=values, message=message)]
    return []


@once_per_graph
def _own_experts(graph: OpGraph) -> tuple[tuple[str, int, str | None], ...]:
    """Experts that the model's own code runs: their module, how many there are, and why ranks cannot have some each."""
    own = [(b, op) for b, op in graph.all_ops() if isinstance(op, ExpertsLinear) and not is_stacked(op)]
    return tuple((op.fqn, op.experts.size, own_experts_reason(b, op)) for b, op in own)


def option_illegal(
    option: Option, sizes: Mapping[str, int], residual: Layout, op: FusedOp, *, uneven: bool = False
) -> str | None:
    """Why an option is not offered at axis ``sizes``; None if it is. ``uneven`` allows what is filled up if asked.

    An op that follows another has its choice, also where its own axis has one rank: the k norm of a core with one kv
    head, which every rank has, goes with query heads split over tp.
    """
    axis = option_axis(option)
    if axis is not None and sizes[axis] == 1 and op.follows is None:
        return f"same as {'by heads' if axis == 'tp_rep' else 'replicated'} at {axis}=1"
    why = option.undivided(sizes, uneven=uneven)
    if why is not None:
        return why
    needed = residual_needed(op, option)
    if needed is not None and needed is not residual:
        return f"the residual is {_RESIDUAL_WORDS[residual]}"
    return None


_RESIDUAL_WORDS = {Layout.REPLICATED: "replicated", Layout.SHARDED: "sharded", Layout.TOKENS: "split by tokens"}


def residual_needed(op: FusedOp, option: Option) -> Layout | None:
    """The layout of the residual with which an option goes; None for any."""
    if not isinstance(op, Norm) or op.follows is not None:
        return None
    return {0: Layout.SHARDED, 1: Layout.TOKENS, None: None}[option.choice]


def axis_sizes(mesh: StageMesh) -> dict[str, int]:
    """Size of every axis of a stage mesh."""
    return {axis: mesh.size(axis) for axis, _ in mesh.views}


def choice_key(graph: OpGraph, block: Block, op: FusedOp) -> str:
    """The key of the choice that decides an op: its own, that of the op it follows or shares weights with.

    A tied head has the embedding's choice: 0 splits the vocabulary of both, 1 the hidden dim.
    """
    if op.follows is not None:
        return f"{block.name}/{op.follows}"
    leader = leader_of(block, op)
    if leader is not None:
        return f"{block.name}/{leader.name}"
    shared = {p.shared_with for p in op.params if p.shared_with is not None}
    for other, owner in graph.all_ops() if shared else ():
        if any(p.fqn in shared and p.shared_with is None for p in owner.params):
            return f"{other.name}/{owner.name}"
    return f"{block.name}/{op.name}"


def choice_keys(graph: OpGraph) -> tuple[str, ...]:
    """Every key a strategy may have, in graph order, `RESIDUAL` and `DISPATCH` first."""
    own = [f"{b.name}/{op.name}" for b in graph.components() for op in free_ops(b)]
    decided = {choice_key(graph, b, op) for b in graph.components() for op in free_ops(b)}
    dispatch = (DISPATCH,) if can_exchange(graph) else ()
    return (RESIDUAL, *dispatch, *(key for key in own if key in decided))


def chosen_options(graph: OpGraph, block: Block, strategy: Strategy) -> dict[str, Option]:
    """The option every op of a block takes under a strategy; an op without a choice of its own takes its leader's."""
    found: dict[str, Option] = {}
    for op in block.ops:
        offered = options(block, op, WIDER)
        if not offered:
            continue
        found[op.name] = option_under(op, offered, strategy.choice(choice_key(graph, block, op)))
    return found


def _partition_reasons(graph: OpGraph, strategy: Strategy) -> list[Reason]:
    """The rule that an explicit partition of layers breaks: pp stages of at least one layer, all layers dealt."""
    pp, counts, layers = strategy.degrees.pp, strategy.stages, len(graph.layers)
    if len(counts) == pp and sum(counts) == layers and min(counts) >= 1:
        return []
    even = ",".join(str(n) for n in partition(layers, pp))
    message = (
        f"stages {','.join(str(n) for n in counts)} are not {layers} layers over pp={pp} stages of at least one;"
        f" the even partition is {even}"
    )
    return [Reason(rule="stages", values=(("layers", layers), ("pp", pp)), message=message)]


def strategy_reasons(graph: OpGraph, strategy: Strategy) -> tuple[Reason, ...]:
    """Every rule a strategy breaks: degrees first, then each choice that is not offered at these degrees."""
    d = strategy.degrees
    found = list(degree_reasons(graph, pp=d.pp, dp=d.dp, tp=d.tp, ep=d.ep, uneven=strategy.uneven))
    if found:
        return tuple(found)
    if strategy.stages:
        found += _partition_reasons(graph, strategy)
    sizes = axis_sizes(mesh_of(graph, d))
    keys = choice_keys(graph)
    for key, _ in strategy.choices:
        if key not in keys:
            found.append(Reason(rule="known op", values=(), message=f"no op {key!r}; there are {', '.join(keys)}"))
    for block in graph.components():
        for name, option in chosen_options(graph, block, strategy).items():
            op = block.op(name)
            why = option_illegal(option, sizes, strategy.residual, op, uneven=strategy.uneven)
            wanted: Choice = strategy.choice(choice_key(graph, block, op))
            follows = follows_core(op) and wanted == SEQUENCE
            if why is None and option.choice != wanted and not follows:
                why = "the op has no such choice"
            if why is not None:
                message = f"choice {wanted} of {block.name}/{name}: {why}"
                found.append(Reason(rule="choice", values=tuple(sorted(sizes.items())), message=message))
    for key, offered in model_choices(graph, sizes, pp=d.pp).items():
        wanted = strategy.choice(key)
        why = offered.get(wanted, "there is no such choice")
        if why is not None:
            values = (("tp", d.tp), ("ep", d.ep))
            found.append(Reason(rule=key.partition("/")[2], values=values, message=f"choice {wanted} of {key}: {why}"))
    return tuple(found)


@once_per_graph
def _embedding_width(graph: OpGraph) -> int:
    return max((op.hidden.size for _, op in graph.all_ops() if op.kind == "embedding"), default=0)


def model_choices(graph: OpGraph, sizes: Mapping[str, int], *, pp: int = 1) -> dict[str, dict[Choice, str | None]]:
    """The choices that no single op has, and why each is not offered at axis ``sizes`` (None: it is).

    Tokens are not split over pipeline stages: a stage reads from what it is sent how many there are.
    """
    tp = sizes["tp"]
    width = _embedding_width(graph) or tp
    sharded = sharded_residual_reason(graph)
    tokens = split_tokens_reason(graph)
    if tp == 1:
        sharded = tokens = "same as replicated at tp=1"
    elif width % tp:
        sharded = f"hidden {width} does not divide by tp={tp}"
    if pp > 1 and tokens is None:
        tokens = f"tokens stay whole between pp={pp} stages"
    found: dict[str, dict[Choice, str | None]] = {RESIDUAL: {None: None, 0: sharded, 1: tokens}}
    if can_exchange(graph):
        found[DISPATCH] = {None: None, 0: exchange_illegal(sizes["ep"])}
    return found
