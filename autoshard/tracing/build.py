"""Third pass over a block: from found ops with roles to the fused ops of the intermediate representation."""

from dataclasses import dataclass, field

from torch import fx

from autoshard.ir import (
    BLOCK_INPUT,
    Activation,
    Add,
    Attention,
    Dim,
    Embedding,
    ExpertsLinear,
    FusedOp,
    Linear,
    Norm,
    Opaque,
    Param,
    Router,
)
from autoshard.tracing.axes import base_name, shape_of
from autoshard.tracing.context import GraphContext
from autoshard.tracing.dataflow import Dataflow, Found
from autoshard.tracing.masks import attention_window
from autoshard.tracing.roles import Ffn, Roles


def _text(*names: str) -> str:
    """A product of named dims as einops writes it."""
    return names[0] if len(names) == 1 else f"({' '.join(names)})"


@dataclass(kw_only=True)
class OpBuilder:
    """Builds the ops of one block. ``names`` must be filled before anything is built."""

    flow: Dataflow
    roles: Roles
    context: GraphContext
    names: dict[Found, str] = field(default_factory=dict)
    _owned: dict[Found, tuple[Param, ...]] = field(default_factory=dict)

    def drop_illegible(self, found: list[Found]) -> None:
        """Take the role from contractions whose weight the intermediate representation cannot describe."""
        for op in found:
            if op.shape != "contraction" or not op.role:
                continue
            position = self._contracted_position(op)
            rank = len(self._weight_axes(op))
            if position is None or (rank == 2 and position != 1):
                op.role, op.reason = "", "the weight is not stored as (out, in)"
        for ffn in list(self.roles.ffns):
            members = (*ffn.ups, ffn.down)
            if all(op.role for op in members) and all(self._packing(ffn, up)[0] for up in ffn.ups):
                continue
            self.roles.ffns.remove(ffn)
            for op in members:
                op.role, op.reason = "", op.reason or "how the up projections reach the down projection is unclear"

    def build(self, op: Found) -> FusedOp:
        """The fused op of a found one."""
        match op.role:
            case "embedding":
                return self._embedding(op)
            case "norm" | "q_norm" | "k_norm":
                return self._norm(op)
            case "add":
                return self._add(op)
            case "attention":
                return self._attention(op)
            case "router":
                return self._router(op)
            case "experts_gate" | "experts_up" | "experts_down":
                return self._experts(op)
            case "":
                return self._opaque(op)
            case _:
                return self._linear(op)

    def activation(self, ffn: Ffn) -> Activation:
        """The op between the up projections and ``down``."""
        width = self._in_dim(ffn.down)
        wide = sum(self._out_size(up) for up in ffn.ups) // width.size
        entering = _text(str(wide), width.name) if wide > 1 else width.name
        rows = "(t k)" if ffn.routed else "t"
        return Activation(
            name=ffn.activation_name,
            fqn=_common_module(*(self._fqn(op) for op in (*ffn.ups, ffn.down))),
            inputs=tuple(self.names[up] for up in ffn.ups),
            signature=f"{rows} {entering} -> {rows} {width.name}",
            width=width,
            num_inputs_wide=wide,
            top_k=self.roles.top_k[ffn.router] if ffn.router is not None else 1,
            routed=ffn.routed,
        )

    def _packing(self, ffn: Ffn, up: Found) -> tuple[int, bool]:
        """(parts, alternating) of an up projection that holds several projections; (0, False) if unclear.

        The axis analysis has split the weight's rows as the activation does: (parts, width) for halves side by side,
        (width, parts) for alternating ones.
        """
        rows = self.context.analysis.leaves(self._out_axis(up))
        inner = self.context.analysis.leaves(self._in_axis(ffn.down))
        parts = self._out_size(up) // self.context.analysis.factors.size(inner)
        if rows == inner:
            return 1, False
        if rows[-len(inner) :] == inner:
            return parts, False
        if rows[: len(inner)] == inner:
            return parts, True
        return 0, False

    def _inputs(self, op: Found) -> tuple[str, ...]:
        """Names of the ops this one reads; a router whose choice another input already carries is left out."""
        ffn = self.roles.ffn_into(op)
        if ffn is not None:
            return (ffn.activation_name,)
        sources = [s for s in self.flow.sources(*self.flow.operands(op)) if s is not op]
        routed = {self.roles.router_of[s] for s in sources if s in self.roles.router_of}
        return tuple(self.names[s] for s in sources if s not in routed)

    def _params(self, op: Found) -> tuple[Param, ...]:
        if op not in self._owned:
            owner = op.fqn or self.context.owners.get(op.node.name, "")
            given = ((op.weight, "weight"), (op.bias, "bias"), *((p, "weight") for p in op.parameters))
            self._owned[op] = tuple(self.context.ledger.claim(p, owner, role) for p, role in given if p is not None)
        return self._owned[op]

    def _fqn(self, op: Found) -> str:
        """The module that owns the weight; without one, the module that ran the op."""
        if op.fqn:
            return op.fqn
        params = self._params(op)
        return params[0].fqn.rpartition(".")[0] if params else self.context.owners.get(op.node.name, "")

    # -- dims --------------------------------------------------------------------------------------------------------

    def _weight_axes(self, op: Found) -> list[tuple[int, ...]]:
        assert op.weight is not None
        return self.context.analysis.of(op.weight)

    def _contracted_position(self, op: Found) -> int | None:
        """Which of the weight's last two dims is summed over."""
        summed = set(self.context.analysis.leaves(self.context.analysis.contracted.get(op.node, ())))
        axes = self._weight_axes(op)
        for i in range(len(axes) - 1, len(axes) - 3, -1):
            leaves = self.context.analysis.leaves(axes[i])
            if leaves and set(leaves) <= summed:
                return i
        return None

    def is_transposed(self, op: Found) -> bool:
        """Whether the weight is (in, out) rather than (out, in)."""
        return self._contracted_position(op) != len(self._weight_axes(op)) - 1

    def _in_axis(self, op: Found) -> tuple[int, ...]:
        return self._weight_axes(op)[-2 if self.is_transposed(op) else -1]

    def _out_axis(self, op: Found) -> tuple[int, ...]:
        return self._weight_axes(op)[-1 if self.is_transposed(op) else -2]

    def _out_size(self, op: Found) -> int:
        return self.context.analysis.factors.size(self.context.analysis.leaves(self._out_axis(op)))

    def _in_dim(self, op: Found) -> Dim:
        size = self.context.analysis.factors.size(self.context.analysis.leaves(self._in_axis(op)))
        name = {"o": "heads*head_dim", "down": "intermediate", "experts_down": "intermediate"}.get(op.role, "hidden")
        return Dim(name=name, size=size)

    def _out_dim(self, op: Found, packed: int = 1) -> Dim:
        names = {"q": "heads*head_dim", "k": "kv_heads*head_dim", "v": "kv_heads*head_dim", "head": "vocab"}
        inner = ("gate", "up", "experts_gate", "experts_up")
        name = "intermediate" if op.role in inner else names.get(op.role, "hidden")
        return Dim(name=name if packed == 1 else f"{packed}*{name}", size=self._out_size(op))

    # -- ops ---------------------------------------------------------------------------------------------------------

    def _embedding(self, op: Found) -> Embedding:
        assert op.weight is not None
        vocab, hidden = shape_of(op.weight)
        return Embedding(
            name=self.names[op],
            fqn=self._fqn(op),
            inputs=(BLOCK_INPUT,),
            params=self._params(op),
            signature="t, vocab hidden -> t hidden",
            vocab=Dim(name="vocab", size=vocab),
            hidden=Dim(name="hidden", size=hidden),
        )

    def _norm(self, op: Found) -> Norm:
        assert op.weight is not None
        group = shape_of(op.weight)[0]
        width, follows = Dim(name="hidden", size=group), None
        if op.role in ("q_norm", "k_norm"):
            (projection,) = self.flow.sources(*self.flow.operands(op))
            width = self._out_dim(projection)
            follows = next(self.names[a] for a, qkv in self.roles.attention_inputs.items() if projection in qkv)
        elif group != self.context.hidden:
            width = Dim(name="features", size=group)
        means = sum(base_name(n) == "mean" for n in self.flow.between(*self.flow.operands(op)))
        statistics = 2 if base_name(op.node) == "layer_norm" or means > 1 else 1
        text = _text(*width.name.split("*"))
        scale = text if group == width.size else "head_dim"
        return Norm(
            name=self.names[op],
            fqn=self._fqn(op),
            inputs=self._inputs(op),
            params=self._params(op),
            signature=f"t {text}, {scale} -> t {text}",
            follows=follows,
            width=width,
            group=group,
            num_statistics=statistics,
        )

    def _add(self, op: Found) -> Add:
        residual, branch = (n for n in op.node.all_input_nodes)
        if not self.flow.is_residual(residual):
            residual, branch = branch, residual
        (carrier,) = self.flow.sources(residual)
        others = self.flow.sources(branch)
        routed = {self.roles.router_of[s] for s in others if s in self.roles.router_of}
        return Add(
            name=self.names[op],
            fqn=self.context.owners[op.node.name],
            inputs=(self.names[carrier], *(self.names[s] for s in others if s not in routed)),
            signature="t hidden, t hidden -> t hidden",
            width=Dim(name="hidden", size=shape_of(op.node)[-1]),
        )

    def _attention(self, op: Found) -> Attention:
        query, key, value = (n for n in op.node.args[:3] if isinstance(n, fx.Node))
        factors, leaves = self.context.analysis.factors, self.context.analysis.leaves
        projection = self.roles.attention_inputs[op][1]
        rows = set(leaves(self._out_axis(projection)))
        kv_heads = tuple(f for f in leaves(self.context.analysis.of(key)[1]) if f in rows)
        num_heads, head_dim = shape_of(query)[1], shape_of(query)[3]
        return Attention(
            name=self.names[op],
            fqn=self._fqn(op),
            inputs=tuple(self.names[s] for t in (query, key, value) for s in self.flow.sources(t)),
            signature="t (heads head_dim), t (kv_heads head_dim), t (kv_heads head_dim) -> t (heads head_dim)",
            heads=Dim(name="heads", size=num_heads),
            kv_heads=Dim(name="kv_heads", size=factors.size(kv_heads)),
            qk_dim=head_dim,
            v_dim=shape_of(value)[3],
            window=attention_window(op.node),
        )

    def _router(self, op: Found) -> Router:
        assert op.weight is not None
        experts, hidden = shape_of(op.weight)
        return Router(
            name=self.names[op],
            fqn=self._fqn(op),
            inputs=self._inputs(op),
            params=self._params(op),
            signature="t hidden, experts hidden -> t experts",
            hidden=Dim(name="hidden", size=hidden),
            experts=Dim(name="experts", size=experts),
            top_k=self.roles.top_k[op],
        )

    def _linear(self, op: Found) -> Linear:
        ffn = next((f for f in self.roles.ffns if op in f.ups), None)
        packed = self._packing(ffn, op)[0] if ffn is not None else 1
        in_dim, out_dim = self._in_dim(op), self._out_dim(op, packed)
        rows, columns = _text(*out_dim.name.split("*")), _text(*in_dim.name.split("*"))
        return Linear(
            name=self.names[op],
            fqn=self._fqn(op),
            inputs=self._inputs(op),
            params=self._params(op),
            signature=f"t {columns}, {rows} {columns} -> t {rows}",
            in_dim=in_dim,
            out_dim=out_dim,
            packed=packed,
            is_head=op.role == "head",
        )

    def _experts(self, op: Found) -> ExpertsLinear:
        ffn = next(f for f in self.roles.ffns if op in (*f.ups, f.down))
        assert ffn.router is not None and op.weight is not None
        up = op is not ffn.down
        packed, interleaved = self._packing(ffn, op) if up else (1, False)
        in_dim, out_dim = self._in_dim(op), self._out_dim(op, packed)
        transposed = self.is_transposed(op)
        rows, columns = _text(*out_dim.name.split("*")), in_dim.name
        weight = f"{columns} {rows}" if transposed else f"{rows} {columns}"
        inputs = self._inputs(op)
        router = self.names[ffn.router]
        return ExpertsLinear(
            name=self.names[op],
            fqn=self._fqn(op),
            inputs=(*(i for i in inputs if i != router), router) if up else inputs,
            params=self._params(op),
            signature=f"(t k) {columns}, experts {weight} -> (t k) {rows}",
            stage="up" if up else "down",
            experts=Dim(name="experts", size=shape_of(op.weight)[0]),
            in_dim=in_dim,
            out_dim=out_dim,
            top_k=self.roles.top_k[ffn.router],
            packed=packed,
            interleaved=interleaved,
            transposed=transposed,
        )

    def _opaque(self, op: Found) -> Opaque:
        return Opaque(
            name=self.names[op],
            fqn=self._fqn(op),
            inputs=self._inputs(op),
            params=self._params(op),
            width=Dim(name="features", size=shape_of(op.node)[-1] if "val" in op.node.meta else 1),
            flops_per_token=sum(self._flops(n) for n in op.nodes) / self.context.tokens,
            reason=op.reason,
        )

    def _flops(self, node: fx.Node) -> float:
        """Two per multiply-add of a contraction; element-wise work is neglected."""
        summed = self.context.analysis.contracted.get(node)
        if summed is None:
            return 0.0
        return (
            2.0
            * int(node.meta["val"].numel())
            * self.context.analysis.factors.size(self.context.analysis.leaves(summed))
        )


def _common_module(*names: str) -> str:
    """The innermost module that holds all of ``names``."""
    split = [name.split(".") for name in names]
    common = []
    for parts in zip(*split, strict=False):
        if len(set(parts)) > 1:
            break
        common.append(parts[0])
    return ".".join(common)
