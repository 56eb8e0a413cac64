"""First pass over a block: which nodes are fused ops, by what they compute.

Recognised by shape: an embedding (gather of a parameter's rows by the token ids), a contraction with a parameter, a
normalisation scaled by a parameter, softmax attention, a residual sum. What they *are* (a query projection, a router)
needs their surroundings and is decided in :mod:`autoshard.tracing.roles`.
"""

from torch import fx

from autoshard.tracing.axes import argument, base_name, shape_of
from autoshard.tracing.dataflow import LAYOUT, Dataflow, Found, is_tensor
from autoshard.tracing.softmax import spelled_attention, whole_attention

CONTRACTIONS = frozenset(
    ["linear", "einsum", "matmul", "mm", "bmm", "_grouped_mm", "grouped_mm", "grouped_mm_fallback"]
)
"""Ops that sum products of two tensors."""
_PARTS = {"slice", "narrow", "chunk", "split", "split_with_sizes", "unbind", "getitem"}
SLICED = LAYOUT | {"select"}
"""Ops through which a tensor is one of the matrices of a three-dimensional parameter."""
CUT = SLICED | _PARTS
"""Ops through which a tensor is any part of a parameter."""
_GATHERED = LAYOUT | {"index"}


def recognise(flow: Dataflow, token_ids: set[fx.Node]) -> list[Found]:
    """Find and label the fused ops of a block, in execution order. ``token_ids`` are the model's input ids."""
    found: list[Found] = []
    for node in flow.nodes:
        name = base_name(node)
        if node in flow.labels:
            continue
        if name == "embedding":
            op = _embedding(flow, node, token_ids)
        elif name in CONTRACTIONS:
            op = _contraction(flow, node)
        elif name == "scaled_dot_product_attention":
            op = whole_attention(node)
        elif name in ("softmax", "_softmax"):
            op = spelled_attention(flow, node)
        elif name in ("layer_norm", "rms_norm"):
            op = _fused_norm(flow, node)
        elif name == "mul":
            op = _scaled_norm(flow, node)
        elif name in ("add", "add_"):
            op = None if _bias(flow, node) else _residual_sum(flow, node)
        else:
            op = None
        if op is not None:
            flow.label(op, op.node)
            found.append(op)
    return found


def _embedding(flow: Dataflow, node: fx.Node, token_ids: set[fx.Node]) -> Found | None:
    weight, index = node.args[0], node.args[1]
    assert isinstance(weight, fx.Node) and isinstance(index, fx.Node)
    parameter = flow.parameter(weight)
    while index not in token_ids:
        if base_name(index) not in LAYOUT:
            return None
        index = index.all_input_nodes[0]
    return Found(shape="embedding", node=node, weight=parameter) if parameter is not None else None


def _contraction(flow: Dataflow, node: fx.Node) -> Found | None:
    """A contraction of an activation with exactly one parameter."""
    bias = argument(node, 2, "bias") if base_name(node) == "linear" else None
    operands = [n for n in node.all_input_nodes if n is not bias]
    weights = [p for p in map(flow.parameter, operands) if p is not None and len(shape_of(p)) in (2, 3)]
    is_slice = False
    if not weights:
        sliced = [flow.parameter(n, through=SLICED) for n in operands if len(shape_of(n)) == 2]
        weights = [p for p in sliced if p is not None and len(shape_of(p)) in (2, 3)]
        is_slice = True
    if len(weights) != 1:
        return None
    return Found(
        shape="contraction",
        node=node,
        weight=weights[0],
        is_slice=is_slice,
        bias=flow.parameter(bias) if isinstance(bias, fx.Node) else None,
    )


def _fused_norm(flow: Dataflow, node: fx.Node) -> Found | None:
    given = [flow.parameter(n) if isinstance(n, fx.Node) else None for n in node.args[2:4]]
    weight, bias = (*given, None, None)[:2]
    return Found(shape="norm", node=node, weight=weight, bias=bias) if weight is not None else None


def _scaled_norm(flow: Dataflow, node: fx.Node) -> Found | None:
    """``w * x / rms(x)``: a product of a vector parameter and a value that was divided by its own root mean square."""
    if len(node.all_input_nodes) != 2:
        return None
    for scale, value in (node.all_input_nodes, reversed(node.all_input_nodes)):
        weight = flow.parameter(scale)
        if weight is None or len(shape_of(weight)) != 1 or not is_tensor(value):
            continue
        behind = flow.between(value)
        if any(map(is_root, behind)) and {base_name(n) for n in behind} & {"mean", "var", "sum"}:
            return Found(shape="norm", node=node, weight=weight)
    return None


def is_root(node: fx.Node) -> bool:
    """Whether ``node`` takes a square root, or divides by one."""
    name = base_name(node)
    return name in ("rsqrt", "sqrt") or (name == "pow" and node.args[1] in (0.5, -0.5))


def _bias(flow: Dataflow, node: fx.Node) -> bool:
    """Attach a parameter that is added to a contraction's or a norm's result to that op."""
    if len(node.all_input_nodes) != 2:
        return False
    for term, value in (node.all_input_nodes, reversed(node.all_input_nodes)):
        parameter = flow.parameter(term, through=_GATHERED)
        if parameter is None:
            continue
        while value not in flow.labels and base_name(value) in LAYOUT and value.all_input_nodes:
            value = value.all_input_nodes[0]
        owner = flow.labels.get(value)
        if (
            owner is None
            or owner.weight is None
            or owner.bias is not None
            or owner.shape not in ("contraction", "norm")
        ):
            return False
        if len(shape_of(parameter)) != max(1, len(shape_of(owner.weight)) - 1):
            return False
        if not flow.same_module(owner.weight, parameter):
            return False
        owner.bias = parameter
        flow.label(owner, node)
        return True
    return False


def _residual_sum(flow: Dataflow, node: fx.Node) -> Found | None:
    """A residual plus something computed from the block's data, of the same width."""
    operands = [n for n in node.all_input_nodes if is_tensor(n)]
    if len(operands) != 2:
        return None
    residual, branch = operands
    if not flow.is_residual(residual):
        residual, branch = branch, residual
    same_width = shape_of(residual)[-1:] == shape_of(branch)[-1:]
    if not flow.is_residual(residual) or not flow.sources(branch) or not same_width:
        return None
    return Found(shape="add", node=node)
