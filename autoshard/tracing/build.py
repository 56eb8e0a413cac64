"""Third pass over a block: from found ops with roles to the fused ops of the intermediate representation."""

from dataclasses import replace

from autoshard.ir import (
    BLOCK_INPUT,
    Activation,
    Add,
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
from autoshard.tracing.build_base import common_module, text
from autoshard.tracing.build_mixers import MixerBuilder
from autoshard.tracing.dataflow import Found
from autoshard.tracing.roles import Ffn


class OpBuilder(MixerBuilder):
    """Builds the ops of one block. ``names`` must be filled before anything is built."""

    def drop_illegible(self, found: list[Found]) -> None:
        """Take the role from contractions whose weight the intermediate representation cannot describe."""
        for op in found:
            if op.shape != "contraction" or not op.role:
                continue
            position = self._contracted_position(op)
            rank = len(self._weight_axes(op))
            if position is None or (rank == 2 and position != 1 and not op.experts):
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
            case role if role.endswith("norm"):
                return self._norm(op)
            case "add":
                return self._add(op)
            case "attention":
                return self._attention(op)
            case "latent_attention":
                return self._latent_attention(op)
            case "indexer":
                return self._indexer(op)
            case "mixer":
                return self._mixer(op)
            case "combine" | "attn_gate" | "shared_gated":
                return self._combine(op)
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
        entering = text(str(wide), width.name) if wide > 1 else width.name
        rows = "(t k)" if ffn.routed else "t"
        return Activation(
            name=ffn.activation_name,
            fqn=common_module(*(self._fqn(op) for op in (*ffn.ups, ffn.down))),
            inputs=tuple(self.names[up] for up in ffn.ups),
            signature=f"{rows} {entering} -> {rows} {width.name}",
            width=width,
            num_inputs_wide=wide,
            top_k=self._per_token(ffn),
            routed=ffn.routed,
        )

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
        group = shape_of(op.weight)[-1]
        width, follows = Dim(name="hidden", size=group), None
        core = next((a for a, c in self.roles.cores.items() if op in c.norms), None)
        if core is not None:
            read = self.flow.sources(*self.flow.operands(op))
            projection = next(s for s in read if s in self.roles.cores[core].inputs)
            width, follows = Dim(name=self._out_dim(projection).name, size=self._features(op.node)), self.names[core]
        elif group != self.context.hidden or op.role != "norm":
            name = {"q_a_norm": "q_rank", "kv_a_norm": "kv_rank"}.get(op.role, "features")
            width = Dim(name=name, size=self._features(op.node))
        means = sum(base_name(n) == "mean" for n in self.flow.between(*self.flow.operands(op)))
        statistics = 2 if base_name(op.node) == "layer_norm" or means > 1 else 1
        names = text(*width.name.split("*"))
        scale = names if group == width.size else "head_dim"
        return Norm(
            name=self.names[op],
            fqn=self._fqn(op),
            inputs=self._inputs(op),
            params=self._params(op),
            signature=f"t {names}, {scale} -> t {names}",
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
        rows, columns = text(*out_dim.name.split("*")), text(*in_dim.name.split("*"))
        return Linear(
            name=self.names[op],
            fqn=self._ran_in(op),
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
        rows, columns = text(*out_dim.name.split("*")), in_dim.name
        weight = f"{columns} {rows}" if transposed else f"{rows} {columns}"
        inputs = self._inputs(op)
        router = self.names[ffn.router]
        return ExpertsLinear(
            name=self.names[op],
            fqn=self._fqn(op),
            inputs=(*(i for i in inputs if i != router), router) if up else inputs,
            params=self._experts_params(op),
            signature=f"(t k) {columns}, experts {weight} -> (t k) {rows}",
            stage="up" if up else "down",
            experts=Dim(name="experts", size=op.experts or shape_of(op.weight)[0]),
            in_dim=in_dim,
            out_dim=out_dim,
            top_k=self._per_token(ffn),
            packed=packed,
            interleaved=interleaved,
            transposed=transposed,
        )

    def _experts_params(self, op: Found) -> tuple[Param, ...]:
        """Parameters of experts; slices where their module is not told which experts a token goes to.

        Such a module (Llama-4's, which multiplies every token with every expert) cannot be given tokens of its experts.
        """
        params = self._params(op)
        if self.context.takes_routing(self._fqn(op)):
            return params
        return tuple(replace(p, role="slice") if p.role == "weight" else p for p in params)

    def _per_token(self, ffn: Ffn) -> int:
        """Rows per token in a feed-forward network."""
        if ffn.router is None:
            return 1
        assert ffn.down.weight is not None
        return self.roles.experts_per_token(ffn.router, ffn.down.experts or shape_of(ffn.down.weight)[0])

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
