"""From choices to the parallel styles of transformers (``transformers.distributed.tensor_parallel``, 5.24).

A style is set for a module or a parameter of every repeat of a layer at once. What each does, as read there:

======================== ========================================================================
colwise                  weight ``Shard(-2)``, output sharded; on a parameter it is that placement alone
colwise_gather_output    the same, output all-gathered
rowwise                  weight ``Shard(-1)``, sharded input, output all-reduced, bias added once
rowwise_split_input      the same on a whole input, of which a rank takes its slice
packed_colwise           ``_StridedShard(-2, 2)``: gate and up side by side
packed_rowwise           ``_StridedShard(-1, 2)``
embedding_rowwise        vocabulary sharded, output all-reduced; ``embedding_colwise``: hidden sharded, all-gathered
moe_tp_experts           an experts module on its shard, its output all-reduced
grouped_gemm             an experts parameter ``Shard(0)``; ``ep_dispatch_experts`` on the module runs the exchange,
                         which ``ep_implementation`` names: all_reduce or all_to_all
local_params             a module whose own parameters (sinks) are shards
replicate                nothing
======================== ========================================================================
"""

from collections.abc import Iterator
from dataclasses import dataclass

from autoshard.export.reading import Reading, generic
from autoshard.ir import Attention, Block, Embedding, ExpertsLinear, LatentAttention, Linear, Norm, Router
from autoshard.sharding import ResolvedOp
from autoshard.sharding.rules.experts import is_stacked

PACKED_PARTS = 2
"""Parts side by side that ``packed_colwise`` and ``packed_rowwise`` split alike."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A style of a module or parameter, or why there is none (``style`` None)."""

    name: str
    style: str | None
    why: str = ""
    expert: bool = False


def rules(reading: Reading) -> Iterator[Rule]:
    """The rule of everything that owns parameters, by the names of its first layer; several may share a name."""
    for block, item in reading.items():
        for rule in _rules_of(reading, block, item):
            yield Rule(generic(block.fqn(rule.name, 0)), rule.style, rule.why, rule.expert)


def _owner(item: ResolvedOp) -> str:
    return item.op.params[0].fqn.rpartition(".")[0]


def _rules_of(reading: Reading, block: Block, item: ResolvedOp) -> Iterator[Rule]:
    op = item.op
    where = f"{block.name}/{op.name}"
    if isinstance(op, ExpertsLinear) and is_stacked(op):
        yield from _expert_rules(reading, item, where)
    elif isinstance(op, Attention | LatentAttention):
        yield from _core_rules(reading, item, where)
    elif not op.params:
        return
    elif isinstance(op, Linear):
        style = _linear_style(reading, item)
        yield Rule(
            _owner(item), style, f"{where} moves its activation in a way no style does ({_moves(reading, item)})"
        )
    elif isinstance(op, Embedding):
        style = _embedding_style(reading, item)
        yield Rule(_owner(item), style, f"{where} is delivered in a way no style does ({_moves(reading, item)})")
    else:
        shards = item.option is not None and any(reading.sizes[s.axis] > 1 for p in item.option.params for s in p)
        what = (
            "a router" if isinstance(op, Router) else "a norm over its whole row" if isinstance(op, Norm) else op.kind
        )
        for owner in dict.fromkeys(p.fqn.rpartition(".")[0] for p in op.params):
            yield Rule(owner, None if shards else "replicate", f"{where}: {what} can only be replicated")


def _moves(reading: Reading, item: ResolvedOp) -> str:
    before = "+".join(s.kind for s in reading.entry(item)) or "nothing"
    after = "+".join(s.kind for s in reading.exit(item)) or "nothing"
    return f"{before} before, {after} after"


def _linear_style(reading: Reading, item: ResolvedOp) -> str | None:
    assert isinstance(item.op, Linear) and item.option is not None
    entry = tuple(s.kind for s in reading.entry(item))
    leave = tuple(s.kind for s in reading.exit(item))
    packed = item.op.packed
    match item.option.choice:
        case None:
            return "replicate" if not entry and not leave else None
        case 0 if packed == 1 and not entry:
            return {(): "colwise", ("all_gather",): "colwise_gather_output"}.get(leave)
        case 0 if packed == PACKED_PARTS and not entry and not leave and len(item.op.params) == 1:
            return "packed_colwise"
        case 1 if leave == ("all_reduce",):
            return {(): "rowwise", ("slice",): "rowwise_split_input"}.get(entry)
    return None


def _embedding_style(reading: Reading, item: ResolvedOp) -> str | None:
    assert item.option is not None
    leave = tuple(s.kind for s in reading.exit(item))
    styles = {
        (None, ()): "replicate",
        (0, ("all_reduce",)): "embedding_rowwise",
        (1, ("all_gather",)): "embedding_colwise",
    }
    return styles.get((item.option.choice, leave))


def _core_rules(reading: Reading, item: ResolvedOp, where: str) -> Iterator[Rule]:
    """The core follows its projections; only copied kv heads and sinks need a word."""
    assert item.option is not None
    split = item.option.choice == 0
    if split and reading.sizes["tp_rep"] > 1:
        copies = f"{reading.sizes['tp_kv']} kv heads over tp={reading.sizes['tp']}"
        yield Rule(item.op.fqn, None, f"{where}: {copies}: kv heads cannot be copied")
    for p in item.op.params:
        yield Rule(p.fqn, "colwise" if split else "replicate")
        if split:
            yield Rule(p.fqn.rpartition(".")[0], "local_params")


def _expert_rules(reading: Reading, item: ResolvedOp, where: str) -> Iterator[Rule]:
    op, option, d = item.op, item.option, reading.strategy.degrees
    assert isinstance(op, ExpertsLinear) and option is not None
    owner = _owner(item)
    if d.ep > 1:
        yield Rule(owner, "ep_dispatch_experts", expert=True)
        for p in op.params:
            yield Rule(p.fqn, "grouped_gemm", expert=True)
        return
    if option.choice is None:
        yield Rule(owner, "replicate")
        for p in op.params:
            yield Rule(p.fqn, "replicate")
        return
    up = op.stage == "up"
    if option.choice != (0 if up else 1) or reading.exit(item) != (() if up else reading.exit(item)[-1:]):
        yield Rule(owner, None, f"{where}: routed experts are only split up 0, down 1 ({_moves(reading, item)} here)")
        return
    yield Rule(owner, "moe_tp_experts")
    packed = 1 if op.interleaved else op.packed
    for p in op.params:
        if p.role == "bias" and not up:
            why = f"{where}: each of the {d.etp} ranks would add {generic(p.fqn)} once"
            yield Rule(p.fqn, None, why)
        elif packed not in (1, PACKED_PARTS):
            yield Rule(p.fqn, None, f"{where}: {packed} parts side by side, styles know {PACKED_PARTS}")
        else:
            # The split dim is the last one of (e, out, in) down matrices, of transposed up matrices and of biases.
            last = op.transposed == up or p.role == "bias"
            yield Rule(p.fqn, ("packed_" if packed > 1 else "") + ("rowwise" if last else "colwise"))
