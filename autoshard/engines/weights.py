"""Bytes of the weights on one rank, as an engine places them.

Matrices are placed as engines do: those that read the residual by rows, those that return to it by columns, heads over
tp, kv heads over as many ranks as there are heads (copied beyond), experts over ep and their intermediate width over
etp, vocabularies over tp, everything else whole. Shards are rounded up, then padded as the engine pads. Where the
"engine" is autoshard itself, every op takes its smallest legal choice instead, as the search may.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autoshard.engines.profile import Engine
from autoshard.engines.quantisation import Scheme
from autoshard.ir import (
    Activation,
    Block,
    Embedding,
    ExpertsLinear,
    FusedOp,
    Indexer,
    LatentAttention,
    Linear,
    Mixer,
    Norm,
    OpGraph,
    Param,
)
from autoshard.sharding.layout import ETP
from autoshard.sharding.legality import attention_heads, choice_key
from autoshard.sharding.option import Option
from autoshard.sharding.padding import PLAIN, padded_width
from autoshard.sharding.patterns import PATTERNS, role_of
from autoshard.sharding.rules.experts import is_stacked
from autoshard.sharding.rules.experts import options as experts_options
from autoshard.sharding.rules.own_experts import options as own_experts_options
from autoshard.sharding.space import consumers, option_axis, options

KEPT_BYTES = 2.0
"""Most bytes of an element that is not quantised: engines keep weights in 16 bits."""

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightBytes:
    """Bytes on one rank: ``experts`` routed, ``embedding`` tables and head, ``other``; ``scales`` of all quantised."""

    experts: float = 0.0
    embedding: float = 0.0
    other: float = 0.0
    scales: float = 0.0

    @property
    def total(self) -> float:
        """All of them."""
        return self.experts + self.embedding + self.other + self.scales

    def __add__(self, more: "WeightBytes") -> "WeightBytes":
        return WeightBytes(
            experts=self.experts + more.experts,
            embedding=self.embedding + more.embedding,
            other=self.other + more.other,
            scales=self.scales + more.scales,
        )

    def __mul__(self, n: float) -> "WeightBytes":
        return WeightBytes(
            experts=self.experts * n, embedding=self.embedding * n, other=self.other * n, scales=self.scales * n
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """An op where an engine puts it: every option it has, the one engines take, and whose degree splits it.

    ``split`` names the fact that is the degree of a dense or shared FFN, None for other ops.
    """

    op: FusedOp
    offered: tuple[Option, ...]
    usual: Option | None
    split: str | None


class Sites:
    """The sites of every block, by its name; they do not depend on degrees, so one serves many placements."""

    def __init__(self, graph: OpGraph) -> None:
        self.graph = graph
        owners = {f"{b.name}/{op.name}": (b, op) for b, op in graph.all_ops()}
        self.blocks = {
            b.name: tuple(self._site(b, op, owners) for op in b.ops if op.params) for b in graph.components()
        }

    def _site(self, block: Block, op: FusedOp, owners: Mapping[str, tuple[Block, FusedOp]]) -> Site:
        offered = options(block, op)
        owner_block, owner = owners.get(choice_key(self.graph, block, op), (block, op))
        choice = None
        if not (isinstance(owner, Linear) and _stays_whole(owner_block, owner)):
            choice = PATTERNS["megatron"].get(role_of(owner_block, owner))
        usual = next((o for o in offered if o.choice == choice), offered[-1] if offered else None)
        split = None
        if isinstance(op, Linear) and _is_ffn(block, op):
            split = "shared_tp" if any(isinstance(o, ExpertsLinear) for o in block.ops) else "dense_tp"
        return Site(op=op, offered=offered, usual=usual, split=split)


class Placement:
    """Where an engine keeps the weights of a model at given degrees; ``facts`` are those of `Judge.facts`."""

    def __init__(self, sites: Sites, engine: Engine, scheme: Scheme, facts: Mapping[str, Any]) -> None:
        self.sites, self.engine, self.scheme, self.facts = sites, engine, scheme, facts
        tp = int(facts["tp"])
        kv = min((min(tp, kv) for _, kv in attention_heads(sites.graph)), default=tp)
        self.sizes = {"tp": tp, "tp_kv": kv, "ep": int(facts["ep"]), "etp": int(facts["etp"]), "dp": int(facts["dp"])}
        self._free = engine.name == "torch"
        self._pad = next(
            (p for p in engine.padding if (not p.quant or scheme.name in p.quant) and p.when.value(facts)), None
        )

    def block_bytes(self, block: Block, *, own_aliases: bool = False) -> WeightBytes:
        """Bytes of one instance of a block. ``own_aliases``: a tied weight is kept again, on a stage of its own."""
        total = WeightBytes()
        for site in self.sites.blocks[block.name]:
            total = total + self._op_bytes(site, own_aliases)
        return total

    def _op_bytes(self, site: Site, own_aliases: bool) -> WeightBytes:
        op = site.op
        held = [(i, p) for i, p in enumerate(op.params) if p.shared_with is None or own_aliases]
        if not held:
            return WeightBytes()
        if isinstance(op, ExpertsLinear):
            return self._experts_bytes(op)
        best: WeightBytes | None = None
        for option in self._options(site):
            found = WeightBytes()
            for i, param in held:
                found = found + self._param_bytes(op, param, self._shape(site, param, option, i))
            if best is None or found.total < best.total:
                best = found
        assert best is not None
        return best

    def _options(self, site: Site) -> tuple[Option | None, ...]:
        """The options an op may take: the one engines take, or every legal one."""
        if not self._free or not site.offered:
            return (site.usual,)
        return tuple(o for o in site.offered if self._divides(o)) or (site.offered[-1],)

    def _divides(self, option: Option) -> bool:
        axis = option_axis(option)
        if axis is not None and axis not in self.sizes:
            return False
        return option.undivided(self.sizes, uneven=bool(self.facts.get("allow_uneven", 0))) is None

    def _shape(self, site: Site, param: Param, option: Option | None, i: int) -> Shape:
        op, shape = site.op, list(param.shape)
        if isinstance(op, Embedding) or (isinstance(op, Linear) and op.is_head):
            # Tables are padded before they are split.
            shape[0] = math.ceil(shape[0] / self.engine.vocab_multiple) * self.engine.vocab_multiple
        if isinstance(op, Mixer) and self.engine.splits_mixers:
            shape[0] = math.ceil(shape[0] / self.sizes["tp"])
            return tuple(shape)
        for sharding in option.params[i] if option is not None and i < len(option.params) else ():
            own = site.split if sharding.axis == "tp" and not self._free else None
            ways = int(self.facts[own]) if own is not None else self.sizes[sharding.axis]
            packed, grain = (sharding.packed, sharding.grain) if self._free else (1, PLAIN)
            shape[sharding.dim] = math.ceil(padded_width(shape[sharding.dim], ways, packed=packed, grain=grain) / ways)
        return tuple(shape)

    def _experts_bytes(self, op: ExpertsLinear) -> WeightBytes:
        """Routed experts: a rank's share of experts and of their intermediate width, rounded up and padded."""
        ep, etp = self.sizes["ep"], self.sizes["etp"]
        count = math.ceil((op.experts.size + float(self.facts.get("redundant_experts", 0))) / ep)
        inner = op.out_dim.size // op.packed if op.stage == "up" else op.in_dim.size
        outer = op.in_dim.size if op.stage == "up" else op.out_dim.size
        inner = math.ceil(inner / etp)
        if self._free and not any(self._divides(o) for o in self._expert_options(op) if o.choice is not None):
            inner = op.out_dim.size // op.packed if op.stage == "up" else op.in_dim.size
        if self._pad is not None:
            inner = math.ceil(inner / self._pad.intermediate) * self._pad.intermediate
            outer = math.ceil(outer / self._pad.hidden) * self._pad.hidden
        rows, columns = (inner * op.packed, outer) if op.stage == "up" else (outer, inner)
        total = WeightBytes()
        for p in op.params:
            if p.role == "bias":
                share = p.numel / (op.experts.size * op.out_dim.size)
                total = total + WeightBytes(experts=count * rows * self._plain_bytes()) * share
                continue
            # One of many tensors, where experts are modules of their own, is its own share of the whole.
            share = p.numel / (op.experts.size * op.in_dim.size * op.out_dim.size)
            if "experts" in self.scheme.covers:
                elements, scales = self.scheme.matrix_bytes((count, rows, columns))
                total = total + WeightBytes(experts=elements, scales=scales) * share
            else:
                total = total + WeightBytes(experts=count * rows * columns * self._plain_bytes()) * share
        return total

    @staticmethod
    def _expert_options(op: ExpertsLinear) -> tuple[Option, ...]:
        return experts_options(op, ETP) if is_stacked(op) else own_experts_options(op, ETP)

    def _plain_bytes(self) -> float:
        return KEPT_BYTES if self.scheme.is_quantised else self.scheme.element_bytes()

    def _param_bytes(self, op: FusedOp, param: Param, shape: Shape) -> WeightBytes:
        table = isinstance(op, Embedding) or (isinstance(op, Linear) and op.is_head)
        plain = math.prod(shape) * self._plain_bytes()
        if table:
            return WeightBytes(embedding=plain)
        if isinstance(op, Linear) and param.role == "weight" and "linear" in self.scheme.covers and len(shape) == 2:
            elements, scales = self.scheme.matrix_bytes(shape)
            return WeightBytes(other=elements, scales=scales)
        return WeightBytes(other=plain)


def _is_ffn(block: Block, op: Linear) -> bool:
    """Whether a matrix makes or reads the activation of an FFN."""
    acts = {o.name for o in block.ops if isinstance(o, Activation) and not o.routed}
    return bool(set(op.inputs) & acts) or any(reader.name in acts for reader, _ in consumers(block, op.name))


def _stays_whole(block: Block, op: Linear) -> bool:
    """Whether engines keep a matrix whole on every rank: it makes a latent, feeds an indexer, or has one output."""
    if op.out_dim.size == 1:
        return True
    readers = [reader for reader, _ in consumers(block, op.name)]
    latent = any(isinstance(o, LatentAttention) for o in block.ops)
    narrows = latent and any(isinstance(r, Norm) and r.follows is None for r in readers)
    return narrows or any(isinstance(r, Indexer) for r in readers)
