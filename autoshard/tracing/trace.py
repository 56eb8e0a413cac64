"""From a module to its operator graph."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import torch
from torch import fx, nn

from autoshard.errors import UnsupportedModelError
from autoshard.ir import Block, ExpertsLinear, OpGraph
from autoshard.tracing import axis_rules  # noqa: F401  (fills the rule table)
from autoshard.tracing.axes import AxisAnalysis, base_name, shape_of
from autoshard.tracing.blocks import BuiltBlock, build_block
from autoshard.tracing.context import GraphContext
from autoshard.tracing.dataflow import dependents, is_tensor
from autoshard.tracing.export import ExportedModel, export_graph, meta_copy
from autoshard.tracing.head_bench import Calls
from autoshard.tracing.head_ops import split_by_heads
from autoshard.tracing.parameters import ParameterLedger
from autoshard.tracing.quantised import quantised_blocks, with_blocks
from autoshard.tracing.source import ConfigSource, ModelSource
from autoshard.tracing.state import StateProbe
from autoshard.tracing.store import is_remembered, remembered


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedModel:
    """A model's operator graph and the fx graph it was read from.

    ``placed`` gives (block name, op name) for every node of ``exported.module`` that is an op's own computation or one
    of its parameters, by node name.
    """

    graph: OpGraph
    exported: ExportedModel
    placed: dict[str, tuple[str, str]]


def trace(model: nn.Module, *, name: str) -> OpGraph:
    """The operator graph of ``model`` (on any device; left as it is), called ``name``.

    Raises:
        UnsupportedModelError: if the model cannot be traced.
    """
    return _Tracer(model, export_graph(model, bare=True)).run(name).graph


def trace_source(source: ModelSource) -> OpGraph:
    """The operator graph of a source, built on the meta device in its served dtype.

    It is kept on disk where the source is data alone (`autoshard.tracing.store`).

    Raises:
        InvalidInputError: if the source does not give a model.
        UnsupportedModelError: if the model cannot be traced.
    """
    if not source.is_data:
        return _trace_source(source)
    return remembered("graph", source.to_dict(), OpGraph, lambda: _trace_source(source))


def is_traced(source: ModelSource) -> bool:
    """Whether :func:`trace_source` only has to read what it found before."""
    return source.is_data and is_remembered("graph", source.to_dict(), OpGraph)


def _trace_source(source: ModelSource) -> OpGraph:
    graph = trace(source.build(), name=source.name)
    return with_blocks(graph, quantised_blocks(source.config)) if isinstance(source, ConfigSource) else graph


def trace_model(model: nn.Module, *, name: str) -> TracedModel:
    """:func:`trace`, keeping the fx graph and what each of its nodes became."""
    return _Tracer(model, export_graph(model)).run(name)


class _Tracer:
    """One trace: splits the exported graph into blocks and builds each."""

    def __init__(self, model: nn.Module, exported: ExportedModel) -> None:
        self.model = model
        self.exported = exported
        graph = exported.module.graph
        self.calls = [n for n in graph.nodes if n.op == "call_function"]
        inputs = {n for n in graph.nodes if n.op == "placeholder" and is_tensor(n)}
        token_ids = {n for n in inputs if n.name not in exported.parameters and n.name not in exported.buffers}
        embeddings = [n for n in self.calls if base_name(n) == "embedding" and n.args[1] in token_ids]
        analysis = AxisAnalysis(exported.module)
        self.context = GraphContext(
            analysis=analysis,
            ledger=ParameterLedger(model, graph, exported.parameters),
            owners=exported.owners,
            data=dependents(embeddings or token_ids),
            token_ids=token_ids,
            output=set(graph.output_node().all_input_nodes),
            hidden=shape_of(embeddings[0])[-1] if embeddings else 0,
            positions=analysis.of(embeddings[0])[-2] if embeddings else (),
            length=exported.length,
            tokens=exported.tokens,
            model=model,
            kept=StateProbe(model, exported.stacks).of,
        )

    def run(self, name: str) -> TracedModel:
        """Build prologue, blocks and epilogue, and check that they own every parameter."""
        kinds = [kind for stack in self.exported.stacks for kind in stack.kinds]
        members = [[n for n in self.calls if _is_in(self.exported.owners[n.name], kind[0])] for kind in kinds]
        inside = {n for nodes in members for n in nodes}
        inside |= {n for n in self.calls if base_name(n) == "repeated_layer"}
        after = dependents(inside) - inside
        outside = [n for n in self.calls if n not in inside]
        after |= _only_used_by(after, outside)
        before = [n for n in outside if n not in after]

        names = self.context.ledger.names
        layer_names = {layer for kind in kinds for layer in kind}
        in_layers = {f for f in names if any(prefix in layer_names for prefix in _prefixes(f))}
        used_before = {self.context.ledger.placeholders.get(i) for n in before for i in n.all_input_nodes if n.users}
        free = [f for f in names if f not in in_layers]
        prologue = build_block(self.context, before, [f for f in free if f in used_before])
        layers = [
            build_block(self.context, nodes, [f for f in in_layers if _is_in(f, kind[0])], layer=kind[0])
            for kind, nodes in zip(kinds, members, strict=True)
        ]
        epilogue = build_block(self.context, [n for n in outside if n in after], free, last=True)

        calls = cache(lambda: Calls(_on_meta(self.model)))
        blocks = tuple(
            Block(
                name=title,
                ops=split_by_heads(calls, built.ops),
                instances=kind,
                returns_more=kind[0] in self.exported.returns_more,
            )
            for title, built, kind in zip(_block_names(layers), layers, kinds, strict=True)
        )
        index = {layer: i for i, kind in enumerate(kinds) for layer in kind}
        graph = OpGraph(
            model_name=name,
            model_class=type(self.model).__name__,
            dtype=str(next(self.model.parameters()).dtype).removeprefix("torch."),
            prologue=Block(name="prologue", ops=prologue.ops, instances=("",)),
            blocks=blocks,
            epilogue=Block(name="epilogue", ops=epilogue.ops, instances=("",)),
            layers=tuple(index[layer] for stack in self.exported.stacks for layer in stack.layers),
        )
        expected, shared = self.context.ledger.num_parameters, self.context.ledger.shared_by(layer_names)
        if graph.num_parameters != expected and shared:
            raise UnsupportedModelError(
                f"{name} cannot be traced: its layers share parameters ({' and '.join(shared[:2])} are one), which the"
                " graph of one layer of each kind cannot say; give every layer its own"
            )
        assert graph.num_parameters == expected, f"graph holds {graph.num_parameters} parameters, model {expected}"
        placed = {
            node: (block.name, op)
            for block, built in zip(graph.components(), (prologue, *layers, epilogue), strict=True)
            for node, op in built.placed.items()
        }
        return TracedModel(graph=graph, exported=self.exported, placed=placed)


def _on_meta(model: nn.Module) -> nn.Module:
    """The model on meta tensors, in bfloat16: grouped GEMMs take nothing else there."""
    fits = all(p.device.type == "meta" and p.dtype in (torch.bfloat16, torch.float16) for p in model.parameters())
    return model if fits else meta_copy(model).to(torch.bfloat16)


def _is_in(fqn: str, module: str) -> bool:
    return fqn == module or fqn.startswith(module + ".")


def _prefixes(fqn: str) -> Iterator[str]:
    """``fqn`` and the modules around it, innermost first."""
    while fqn:
        yield fqn
        fqn = fqn.rpartition(".")[0]


def _only_used_by(late: set[fx.Node], nodes: list[fx.Node]) -> set[fx.Node]:
    """Those of ``nodes`` that nothing but ``late`` nodes use: the preparation of a weight that is used late."""
    found: set[fx.Node] = set()
    for node in reversed(nodes):
        if node.users and node not in late and all(u in late or u in found for u in node.users):
            found.add(node)
    return found


def _block_names(layers: list[BuiltBlock]) -> list[str]:
    """``layers`` for a single kind; otherwise by whether the block routes to experts, numbered on collision."""
    if len(layers) == 1:
        return ["layers"]
    names: list[str] = []
    for built in layers:
        name = "moe_layers" if any(isinstance(op, ExpertsLinear) for op in built.ops) else "dense_layers"
        same = sum(n == name or n.startswith(name + "_") for n in names)
        names.append(name if not same else f"{name}_{same + 1}")
    return names
