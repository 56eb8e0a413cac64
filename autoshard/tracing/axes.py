"""Named-dimension recovery: one rule per ATen op says how its output's axes follow from its inputs'.

An op without a rule that is element-wise by shape (the output is the broadcast of its inputs) unifies its inputs'
axes; any other gives fresh axes, which loses knowledge and claims nothing. Index tensors carry a *value domain*: the
axis their values point into (the router's output axis, for the result of its ``topk``), kept through sorting and
reshaping, so that gathers and histograms over experts are recognised as the expert axis.
"""

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

from autoshard.tracing.factors import Axis, Factors

Axes = list[Axis]
Rule = Callable[["AxisAnalysis", fx.Node], Any]

_RULES: dict[str, Rule] = {}

_KEEP_DOMAIN = frozenset(
    [
        "view",
        "reshape",
        "to",
        "clamp",
        "clamp_",
        "contiguous",
        "transpose",
        "permute",
        "unsqueeze",
        "squeeze",
        "expand",
        "flatten",
        "slice",
        "clone",
        "detach",
        "index",
        "select",
        "alias",
        "masked_fill",
    ]
)


def base_name(node: fx.Node) -> str:
    """``"linear"`` for a call of ``aten.linear.default``; ``"getitem"``, ``"repeated_layer"`` likewise."""
    if node.op != "call_function":
        return ""
    if node.target is operator.getitem:
        return "getitem"
    packet = getattr(node.target, "overloadpacket", None)
    name = getattr(packet if packet is not None else node.target, "__name__", str(node.target))
    return str(name)


def shape_of(node: fx.Node) -> tuple[int, ...]:
    """Shape of the tensor ``node`` gives."""
    return tuple(int(s) for s in node.meta["val"].shape)


def argument(node: fx.Node, position: int, name: str, default: Any = None) -> Any:
    """An argument given by position or keyword."""
    if len(node.args) > position:
        return node.args[position]
    return node.kwargs.get(name, default)


class AxisAnalysis:
    """Axes of every tensor of a graph.

    ``axes`` maps a node to the axes of its tensor (or a list of them for a node with several results);
    ``contracted`` maps a contraction to the axis it sums over, ``domains`` an index tensor to the axis it points into.
    ``expanded`` are the axes that ``expand`` has made by repetition.
    """

    def __init__(self, module: fx.GraphModule) -> None:
        self.factors = Factors()
        self.axes: dict[fx.Node, Any] = {}
        self.contracted: dict[fx.Node, Axis] = {}
        self.domains: dict[fx.Node, Axis] = {}
        self.expanded: list[Axis] = []
        for node in module.graph.nodes:
            if node.op == "placeholder":
                self.axes[node] = self.fresh(node)
            elif node.op == "call_function":
                rule = _RULES.get(base_name(node), _pointwise)
                self.axes[node] = rule(self, node)
                self._carry_domain(node)

    def of(self, node: Any) -> Axes:
        """Axes of a single tensor."""
        axes: Axes = self.axes[node]
        return axes

    def leaves(self, axis: Axis) -> Axis:
        """Finest factors of an axis."""
        return self.factors.leaves(axis)

    def fresh(self, node: fx.Node) -> Any:
        """New axes for the tensor or tensors of ``node``."""
        value = node.meta.get("val")
        if isinstance(value, (tuple, list)):
            return [[self.factors.new(int(s)) for s in v.shape] if isinstance(v, Tensor) else None for v in value]
        return [self.factors.new(int(s)) for s in value.shape] if isinstance(value, Tensor) else None

    def broadcast(self, nodes: list[fx.Node], rank: int) -> Axes:
        """Axes of the broadcast of ``nodes``: aligned axes are the same, size one gives way."""
        return self.broadcast_axes([[()] * (rank - len(self.of(n))) + self.of(n) for n in nodes])

    def broadcast_axes(self, tensors: list[Axes]) -> Axes:
        """The same for axes of equal rank."""
        out: Axes = [()] * len(tensors[0])
        for axes in tensors:
            for i, axis in enumerate(axes):
                if not out[i]:
                    out[i] = axis
                elif axis:
                    self.factors.unify(out[i], axis)
        return out

    def _carry_domain(self, node: fx.Node) -> None:
        name = base_name(node)
        source = node.args[0] if node.args else None
        if not isinstance(source, fx.Node):
            return
        if name == "getitem":
            origin = base_name(source)
            values = source.args[0]
            if origin == "topk" and node.args[1] == 1:
                self.domains[node] = self.of(values)[argument(source, 2, "dim", -1)]
            elif origin == "sort" and node.args[1] == 0 and values in self.domains:
                self.domains[node] = self.domains[values]  # type: ignore[index]
        elif name in _KEEP_DOMAIN and source in self.domains:
            self.domains[node] = self.domains[source]


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register a rule for ATen ops by base name."""

    def register(function: Rule) -> Rule:
        for name in names:
            _RULES[name] = function
        return function

    return register


def _pointwise(analysis: AxisAnalysis, node: fx.Node) -> Any:
    """Element-wise by shape: unify; otherwise fresh axes."""
    value = node.meta.get("val")
    inputs = [n for n in node.all_input_nodes if isinstance(n.meta.get("val"), Tensor)]
    if isinstance(value, Tensor) and inputs:
        try:
            shape = torch.broadcast_shapes(*(shape_of(n) for n in inputs))  # type: ignore[no-untyped-call]
        except RuntimeError:
            return analysis.fresh(node)
        if tuple(shape) == shape_of(node):
            return analysis.broadcast(inputs, len(shape))
    return analysis.fresh(node)
