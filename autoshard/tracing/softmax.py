"""Softmax attention, in one node or spelled out: scores of queries and keys, a softmax over keys, a sum of values."""

from dataclasses import dataclass, field

from torch import fx

from autoshard.tracing.axes import argument, base_name, shape_of
from autoshard.tracing.dataflow import CREATION, LAYOUT, Dataflow, Found, is_tensor

_PRODUCTS = frozenset(["matmul", "bmm", "einsum", "baddbmm"])
_JOINS = LAYOUT | {"cat", "slice", "add", "where", "masked_fill"}
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
    """The masks, or parts that masks are joined from, that depend on positions only, not on what tokens say."""
    found: list[fx.Node] = []
    stack, seen = mask_operands(flow, op), set[fx.Node]()
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        if not flow.is_data(node):
            found.append(node)
        elif base_name(node) in _JOINS:
            stack.extend(node.all_input_nodes)
    return found


def pooled_keys(flow: Dataflow, op: Found) -> tuple[Found, fx.Node] | None:
    """Keys beyond one a token, joined to them: an attention over the tokens' own keys, and the tensor of the others.

    Both have to be made from data; a pooled key stands for as many tokens as the sequence has to a pooled key.
    """
    own: list[fx.Node] = []
    pooled: list[fx.Node] = []
    for tensor in op.tensors[1:]:
        node = tensor
        while base_name(node) in LAYOUT and node not in flow.labels:
            node = node.all_input_nodes[0]
        if base_name(node) != "cat" or node in flow.labels:
            return None
        parts, rank = list(node.args[0]), len(shape_of(node))  # type: ignore[arg-type]
        dim = int(argument(node, 1, "dim", 0)) % rank
        if any(len(shape_of(part)) != rank for part in parts):
            return None
        sizes = [shape_of(part)[dim] for part in parts]
        if dim != rank - 2 or len(parts) != 2 or sizes[0] != flow.length or not all(map(flow.is_data, parts)):
            return None
        if not 0 < sizes[1] < flow.length or flow.length % sizes[1]:
            return None
        own.append(parts[0])
        pooled.append(parts[1])
    if pooled[0] is not pooled[1]:
        return None
    return Found(shape=op.shape, node=op.node, tensors=(op.tensors[0], *own)), pooled[0]


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
        if base_name(node) in CREATION or not node.meta["val"].is_floating_point():
            continue  # a choice of keys is made from data, but is none of the scores
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
