"""What all builders of fused ops share: names, inputs, parameters and the named dims of weights."""

from dataclasses import dataclass, field

from torch import fx

from autoshard.ir import Dim, Param
from autoshard.tracing.axes import base_name, shape_of
from autoshard.tracing.context import GraphContext
from autoshard.tracing.dataflow import LAYOUT, Dataflow, Found
from autoshard.tracing.recognise import CUT
from autoshard.tracing.roles import Ffn, Roles

_IN_NAMES = {
    "o": "heads*head_dim",
    "down": "intermediate",
    "experts_down": "intermediate",
    "q_b": "q_rank",
    "kv_b": "kv_rank",
    "indexer_q": "q_rank",
}
_OUT_NAMES = {
    "q": "heads*head_dim",
    "k": "kv_heads*head_dim",
    "v": "kv_heads*head_dim",
    "head": "vocab",
    "q_a": "q_rank",
    "q_b": "heads*qk_dim",
    "kv_a": "kv_rank+rope",
    "kv_b": "heads*(nope+v)",
    "k_rope": "rope",
    "qkv": "(heads+2*kv_heads)*head_dim",
    "kv": "2*kv_heads*head_dim",
    "indexer_q": "index_heads*index_dim",
    "indexer_k": "index_dim",
    "indexer_weights": "index_heads",
    "shared_gate": "one",
}
_LOOSE = frozenset(["mixer_in", "mixer_out", "linear"])
"""Roles of linears whose widths have no name of their own."""


def text(*names: str) -> str:
    """A product of named dims as einops writes it."""
    return names[0] if len(names) == 1 else f"({' '.join(names)})"


@dataclass(kw_only=True)
class BlockBuilder:
    """The ops of one block in the making. ``names`` must be filled before anything is built."""

    flow: Dataflow
    roles: Roles
    context: GraphContext
    names: dict[Found, str] = field(default_factory=dict)
    _owned: dict[Found, tuple[Param, ...]] = field(default_factory=dict)

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
            other = "correction" if op.role == "router" else "weight"
            weight = "slice" if op.is_slice else "weight"
            given = ((op.weight, weight), (op.bias, "bias"), *((p, other) for p in op.parameters))
            self._owned[op] = tuple(self.context.ledger.claim(p, owner, role) for p, role in given if p is not None)
        return self._owned[op]

    def _fqn(self, op: Found) -> str:
        """The module that owns the weight; without one, the module that ran the op."""
        if op.fqn:
            return op.fqn
        params = self._params(op)
        return params[0].fqn.rpartition(".")[0] if params else self.context.owners.get(op.node.name, "")

    def _ran_in(self, op: Found) -> str:
        """The module that a linear ran in: its own, unless another reads its weight (``nn.MultiheadAttention``).

        Those of a recurrent mixer stay under their own names: the mixer is told their rows (`head_ops`).
        """
        ran = self.context.owners.get(op.node.name, "")
        return self._fqn(op) if op.role in _LOOSE or not ran else ran

    def _weight_axes(self, op: Found) -> list[tuple[int, ...]]:
        assert op.weight is not None
        if op.is_slice or op.experts:
            return self.context.analysis.of(_matrix_used(self.flow, op))
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

    def _in_size(self, op: Found) -> int:
        return self.context.analysis.factors.size(self.context.analysis.leaves(self._in_axis(op)))

    def _in_dim(self, op: Found) -> Dim:
        return Dim(name=self._width_name(op, _IN_NAMES.get(op.role), self._in_size(op)), size=self._in_size(op))

    def _out_dim(self, op: Found, packed: int = 1) -> Dim:
        inner = ("gate", "up", "experts_gate", "experts_up")
        known = "intermediate" if op.role in inner else _OUT_NAMES.get(op.role)
        name = self._width_name(op, known, self._out_size(op))
        return Dim(name=name if packed == 1 else f"{packed}*{name}", size=self._out_size(op))

    def _width_name(self, op: Found, known: str | None, size: int) -> str:
        if op.role in _LOOSE and size != self.context.hidden:
            return "features"
        return known or "hidden"

    def _features(self, node: fx.Node) -> int:
        """Elements of a tensor per token."""
        total = 1
        for size in shape_of(node):
            total *= size
        return max(1, total // self.context.tokens)

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

    def _flops(self, node: fx.Node) -> float:
        """Two per multiply-add of a contraction; element-wise work is neglected."""
        summed = self.context.analysis.contracted.get(node)
        if summed is None:
            return 0.0
        size = self.context.analysis.factors.size(self.context.analysis.leaves(summed))
        return 2.0 * int(node.meta["val"].numel()) * size


def _matrix_used(flow: Dataflow, op: Found) -> fx.Node:
    """The matrix that a contraction of one expert uses, as it is stored: before a transposition."""
    node = next(n for n in op.node.all_input_nodes if flow.parameter(n, through=CUT) is op.weight)
    while base_name(node) in LAYOUT and base_name(node) not in ("view", "reshape"):
        node = node.all_input_nodes[0]
    return node


def common_module(*names: str) -> str:
    """The innermost module that holds all of ``names``."""
    split = [name.split(".") for name in names]
    common = []
    for parts in zip(*split, strict=False):
        if len(set(parts)) > 1:
            break
        common.append(parts[0])
    return ".".join(common)
