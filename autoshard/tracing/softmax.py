"""Softmax attention, in one node or spelled out: scores of queries and keys, a softmax over keys, a sum of values."""

from dataclasses import dataclass, field

from torch import fx

from autoshard.tracing.axes import argument, base_name, shape_of
from autoshard.tracing.dataflow import Dataflow, Found, is_tensor

_PRODUCTS = frozenset(["matmul", "bmm", "einsum", "baddbmm"])
_LIMIT = 64
"""Nodes looked at between the three steps; masks and sinks take a dozen."""


@dataclass(kw_only=True)
class _Spelled:
    """The nodes of a spelled-out attention core."""

    scores: fx.Node
    softmax: fx.Node
    values: fx.Node
    between: list[fx.Node] = field(default_factory=list)
    parameters: list[fx.Node] = field(default_factory=list)


def whole_attention(node: fx.Node) -> Found:
    """The core behind a ``scaled_dot_product_attention`` node."""
    query, key, value = (n for n in node.args[:3] if isinstance(n, fx.Node))
    return Found(shape="attention", node=node, tensors=(query, key, value))


def spelled_attention(flow: Dataflow, node: fx.Node) -> Found | None:
    """The core around a ``softmax`` node, if it is one. A parameter joined to the scores, a sink, belongs to it."""
    core = _parts(flow, node)
    if core is None:
        return None
    query, key = _operands(core.scores)
    value = _operands(core.values)[1]
    found = Found(shape="attention", node=core.values, tensors=(query, key, value), parameters=core.parameters)
    flow.label(found, core.scores, *core.between, core.softmax)
    return found


def mask_operands(flow: Dataflow, op: Found) -> list[fx.Node]:
    """What an attention core reads besides queries, keys and values."""
    if base_name(op.node) == "scaled_dot_product_attention":
        mask = argument(op.node, 3, "attn_mask")
        return [mask] if isinstance(mask, fx.Node) else []
    return [n for n in flow.operands(op) if n not in op.tensors]


def position_masks(flow: Dataflow, op: Found) -> list[fx.Node]:
    """The masks that depend on positions only, not on what tokens say."""
    return [n for n in mask_operands(flow, op) if not flow.is_data(n)]


def num_heads(op: Found, batch: int) -> int:
    """Heads that attend, whether they have a dim of their own or share it with the batch."""
    query = shape_of(op.tensors[0])
    heads = 1
    for size in query[:-2]:
        heads *= size
    return heads // batch


def _operands(product: fx.Node) -> tuple[fx.Node, fx.Node]:
    inputs = product.all_input_nodes
    return inputs[-2], inputs[-1]


def _parts(flow: Dataflow, softmax: fx.Node) -> _Spelled | None:
    """Scores before and values after ``softmax``, if there is exactly one of each."""
    scores: list[fx.Node] = []
    between: list[fx.Node] = []
    parameters: list[fx.Node] = []
    stack, seen = [softmax.all_input_nodes[0]], {softmax}
    while stack:
        node = stack.pop()
        if node in seen or node in flow.labels or not flow.is_inside(node) or len(seen) > _LIMIT:
            continue
        seen.add(node)
        if base_name(node) in _PRODUCTS and len(shape_of(node)) >= 3:
            scores.append(node)
            continue
        reads = [flow.parameter(n) for n in node.all_input_nodes]
        parameters += [p for p in reads if p is not None and p not in parameters]
        between.append(node)
        stack.extend(n for n in node.all_input_nodes if is_tensor(n) and flow.is_data(n))
    if len(scores) != 1:
        return None
    values: list[fx.Node] = []
    stack = list(softmax.users)
    while stack:
        node = stack.pop()
        if node in seen or len(seen) > _LIMIT:
            continue
        seen.add(node)
        if base_name(node) in _PRODUCTS:
            values.append(node)
            continue
        between.append(node)
        stack.extend(node.users)
    if len(values) != 1 or not flow.is_inside(values[0]) or values[0] in flow.labels:
        return None
    if any(flow.parameter(n) is not None for n in (*_operands(scores[0]), *_operands(values[0]))):
        return None
    return _Spelled(scores=scores[0], softmax=softmax, values=values[0], between=between, parameters=parameters)
