"""Builds the fused ops that mix tokens: attention cores, indexers, recurrent mixers, and the gates around them."""

from autoshard.ir import Attention, Combine, Dim, Indexer, LatentAttention, Mixer
from autoshard.tracing.axes import argument, base_name, shape_of
from autoshard.tracing.build_base import BlockBuilder, common_module
from autoshard.tracing.dataflow import Found
from autoshard.tracing.export import TRACE_BATCH
from autoshard.tracing.masks import attention_window
from autoshard.tracing.softmax import num_heads, position_masks
from autoshard.tracing.state import Kept


class MixerBuilder(BlockBuilder):
    """Adds the ops between projections to :class:`BlockBuilder`."""

    def _attention(self, op: Found) -> Attention:
        query, key, value = op.tensors
        core = self.roles.cores[op]
        inputs = self.flow.sources(query) + self.flow.sources(key) + self.flow.sources(value)
        if len(core.inputs) < 3:
            inputs = tuple(dict.fromkeys(inputs))
        if core.indexer is not None:
            inputs = (*inputs, core.indexer)
        return Attention(
            name=self.names[op],
            fqn=self._fqn(op) if not op.parameters else self.context.owners[op.node.name],
            inputs=tuple(self.names[s] for s in inputs),
            params=self._params(op),
            signature="t (heads head_dim), t (kv_heads head_dim), t (kv_heads head_dim) -> t (heads head_dim)",
            heads=Dim(name="heads", size=num_heads(op, TRACE_BATCH)),
            kv_heads=Dim(name="kv_heads", size=self._kv_heads(op)),
            qk_dim=shape_of(query)[-1],
            v_dim=shape_of(value)[-1],
            window=attention_window(position_masks(self.flow, op)),
            shared_kv=self.flow.same_elements(key, value),
            pooled=None if core.pooled is None else self.context.length // shape_of(core.pooled)[-2],
            selected=None if core.indexer is None else self._selected(core.indexer),
        )

    def _kv_heads(self, op: Found) -> int:
        """Heads of the key projection: factors of the keys' head axis that are rows of its weight."""
        analysis = self.context.analysis
        leaves = analysis.leaves(analysis.of(op.tensors[1])[-3])
        key = self.roles.cores[op].key
        rows = set() if key is None else set(analysis.leaves(self._out_axis(key)))
        own = tuple(f for f in leaves if f in rows)
        if not own:  # rows were cut into unequal parts: all heads that no `expand` has made
            made = {f for axis in analysis.expanded for f in analysis.leaves(axis)}
            own = tuple(f for f in leaves if f not in made)
        return analysis.factors.size(own)

    def _latent_attention(self, op: Found) -> LatentAttention:
        core = self.roles.cores[op]
        query, _, value = op.tensors
        assert core.latent is not None and core.key is not None
        rank = self._in_size(core.key)
        rope = self._out_size(core.inputs[2]) - (rank if core.inputs[2] is core.latent else 0)
        inputs = [*core.inputs, *([] if core.indexer is None else [core.indexer])]
        return LatentAttention(
            name=self.names[op],
            fqn=self.context.owners[op.node.name],
            inputs=tuple(self.names[s] for s in inputs),
            params=self._params(op),
            signature="t (heads qk_dim), t (heads (nope+v)), t (kv_rank+rope) -> t (heads v_dim)",
            heads=Dim(name="heads", size=num_heads(op, TRACE_BATCH)),
            latent=Dim(name="kv_rank", size=rank),
            nope_dim=shape_of(query)[-1] - rope,
            rope_dim=rope,
            v_dim=shape_of(value)[-1],
            selected=None if core.indexer is None else self._selected(core.indexer),
            window=attention_window(position_masks(self.flow, op)) if core.indexer is None else None,
        )

    def _selected(self, indexer: Found) -> int:
        """Keys an indexer picks. If it took all of the short trace, the number is read off the module that ran it."""
        picked = int(argument(indexer.node, 1, "k"))
        if picked < self._keys(indexer):
            return picked
        return self.context.larger_attribute(self.context.owners[indexer.node.name], "topk", picked)

    def _keys(self, indexer: Found) -> int:
        """Keys that an indexer ranks in the trace."""
        return shape_of(indexer.node.all_input_nodes[0])[-1]

    def _indexer(self, op: Found) -> Indexer:
        sources = self.flow.sources(*self.flow.operands(op))
        projection = next(s for s in sources if s.role == "indexer_q")
        head_dim = shape_of(op.tensors[0])[-1]
        return Indexer(
            name=self.names[op],
            fqn=self.context.owners[op.node.name],
            inputs=tuple(self.names[s] for s in sources),
            params=self._params(op),
            signature="t (index_heads index_dim), t index_dim, t index_heads -> t top_k",
            heads=Dim(name="index_heads", size=self._out_size(projection) // head_dim),
            head_dim=head_dim,
            top_k=self._selected(op),
            pooled=max(1, self.context.length // self._keys(op)),
        )

    def _mixer(self, op: Found) -> Mixer:
        params = self._params(op)
        recurrent = self._is_recurrent(op)
        convolved = sum(p.numel for p in params if len(p.shape) == 3)
        kept = self.context.kept(self.context.owners[op.node.name]) if self._keeps_state(op) else Kept()
        width = self._features(op.tensors[0])
        return Mixer(
            name=self.names[op],
            fqn=common_module(
                self.context.owners[op.node.name],
                *(p.fqn.rpartition(".")[0] for p in params),
                *(self._fqn(s) for s in self._read(op) if s.shape == "contraction"),
            ),
            inputs=self._inputs(op),
            params=params,
            signature=f"{', '.join('t features' for _ in self._inputs(op))} -> t features",
            variety="recurrent" if recurrent else "convolution",
            width=Dim(name="features", size=width),
            state_elements=kept.recurrent_elements,
            state_bytes=kept.state_bytes,
            convolution_flops_per_token=2.0 * convolved,
            traced_flops_per_token=2.0 * convolved + sum(self._flops(n) for n in op.nodes) / self.context.tokens,
        )

    def _is_recurrent(self, op: Found) -> bool:
        return any(base_name(n) not in ("conv1d", "convolution") and self._flops(n) for n in op.nodes)

    def _keeps_state(self, op: Found) -> bool:
        """One mixer of a layer has all its state: the recurrent one, else the first."""
        mixers = [m for m in self.names if m.role == "mixer"]
        return op is next((m for m in mixers if self._is_recurrent(m)), mixers[0])

    def _combine(self, op: Found) -> Combine:
        core = next((a for a, c in self.roles.cores.items() if op.role == "attn_gate" and a in self._read(op)), None)
        width = self._features(op.tensors[0])
        name = "heads*head_dim" if core is not None else "hidden" if width == self.context.hidden else "features"
        return Combine(
            name=self.names[op],
            fqn=self.context.owners[op.node.name],
            inputs=self._inputs(op),
            params=self._params(op),
            signature=f"{', '.join('t ' + name for _ in self._inputs(op))} -> t {name}",
            follows=None if core is None else self.names[core],
            width=Dim(name=name, size=width),
            contraction_flops_per_token=sum(self._flops(n) for n in op.nodes) / self.context.tokens,
        )

    def _read(self, op: Found) -> tuple[Found, ...]:
        return self.flow.sources(*self.flow.operands(op))
