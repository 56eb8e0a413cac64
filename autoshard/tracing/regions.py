"""What lies between recognised ops and is more than a change of layout becomes an op of its own.

Between two projections a tensor may only be moved, cast, scaled by constants, turned by rope; an attention core and the
activation of a feed-forward network are known. Anything else -- a convolution, a scan, a gate -- is a *region*: all
nodes from the place where it is read back to the ops it comes from. A region that mixes tokens is a mixer, one that
works element by element a combination. Parameters used inside belong to it.
"""

import math
from collections.abc import Collection

from torch import fx

from autoshard.tracing.attention_roles import Core, is_matrix
from autoshard.tracing.axes import argument, base_name, shape_of
from autoshard.tracing.dataflow import LAYOUT, Dataflow, Found, data_inputs, is_tensor
from autoshard.tracing.export import TRACE_BATCH
from autoshard.tracing.recognise import CONTRACTIONS, is_root

_PARTS = LAYOUT | {"slice", "select", "split", "split_with_sizes", "chunk", "getitem", "dropout", "unbind", "narrow"}
_SLICED = LAYOUT | {"select"}
_SCALING = frozenset(["mul", "div", "add", "sub", "mul_", "div_", "add_", "sub_", "clamp", "neg"])
_MIXING = CONTRACTIONS | {
    "conv1d",
    "cumsum",
    "convolution",
    "conv_depthwise",
    "associative_scan",
    "scan",
    "logcumsumexp",
}
_KNOWN = frozenset(
    ["attention", "latent_attention", "indexer", "embedding", "experts_up", "experts_gate", "experts_down", "down"]
)
"""Roles of ops whose inputs may be anything: what lies before them is part of what they are."""


def insert_regions(flow: Dataflow, found: list[Found], cores: dict[Found, Core]) -> list[Found]:
    """Label the regions that the ops of ``found`` read, in execution order; gives the new ops."""
    owned = {p for op in found for p in op.owned()}
    regions: list[Found] = []
    turned = {norm for core in cores.values() for norm in core.norms}
    for op in sorted(found, key=lambda o: flow.position(o.node)):
        unclear = op in cores and cores[op].unclear
        if (op.role in _KNOWN and not unclear) or op in turned:
            continue
        for start in _read(flow, op):
            for head in _heads(flow, start, sums=op.role == "add"):
                if head in flow.labels:
                    continue
                region = _region(flow, head, owned)
                regions.append(region)
                owned.update(region.parameters)
    _name(flow, found, regions, cores)
    return regions


def _read(flow: Dataflow, op: Found) -> list[fx.Node]:
    """The tensors an op reads; of a norm, what it normalises."""
    if op.shape == "attention":
        return list(op.tensors)
    if op.shape != "norm":
        return list(flow.operands(op))
    if base_name(op.node) in ("layer_norm", "rms_norm"):
        return [op.node.all_input_nodes[0]]
    roots = [n for n in flow.between(*flow.operands(op)) if is_root(n)]
    if not roots:
        return []
    behind = flow.between(*max(roots, key=flow.position).all_input_nodes)
    squares = [n for n in behind if base_name(n) in ("pow", "square", "var", "linalg_vector_norm") or _is_square(n)]
    return [max(squares, key=flow.position).all_input_nodes[0]] if squares else []


def _is_square(node: fx.Node) -> bool:
    return base_name(node) == "mul" and len(node.args) == 2 and node.args[0] is node.args[1]


def _heads(flow: Dataflow, start: fx.Node, *, sums: bool) -> list[fx.Node]:
    """The first nodes behind ``start`` that are more than layout or scaling."""
    heads: list[fx.Node] = []
    stack, seen = [start], set()
    while stack:
        node = stack.pop()
        if node in seen or node in flow.labels or not flow.is_inside(node) or not flow.is_data(node):
            continue
        seen.add(node)
        inputs = [n for n in data_inputs(node) if flow.is_data(n)]
        summed = sums and base_name(node) in ("add", "add_") and len(inputs) == 2
        if summed or _is_plain(flow, node, inputs) or not is_tensor(node):
            stack.extend(inputs)
        elif flow.sources(node) and not _is_weighted_sum(flow, node):
            heads.append(node)
    return heads


def _is_plain(flow: Dataflow, node: fx.Node, inputs: list[fx.Node]) -> bool:
    """Whether ``node`` only lays out or scales its one input of data."""
    name = base_name(node)
    if name == "getitem":
        return base_name(inputs[0]) in _PARTS
    constant = not any(flow.parameter(n) is not None for n in node.all_input_nodes)
    return name in _PARTS or (name in _SCALING and len(inputs) == 1 and constant)


def _is_weighted_sum(flow: Dataflow, node: fx.Node) -> bool:
    """Whether ``node`` sums the experts' results by the router's weights, which the down experts do."""
    others = [s for s in flow.sources(node) if s.role != "router"]
    return len(others) == 1 and others[0].role == "experts_down"


def _region(flow: Dataflow, head: fx.Node, owned: set[fx.Node]) -> Found:
    nodes = flow.between(head)
    region = Found(shape="region", node=max(nodes, key=flow.position), tensors=(head,))
    for node in nodes:
        for source in node.all_input_nodes:
            parameter = flow.parameter(source, through=frozenset())
            if parameter is not None and parameter not in owned and parameter not in region.parameters:
                region.parameters.append(parameter)
    flow.label(region, *_own(flow, nodes))
    region.role = "mixer" if mixes(flow, region.nodes) else "combine"
    return region


def _own(flow: Dataflow, nodes: list[fx.Node]) -> list[fx.Node]:
    """The nodes that compute: not those that only lay out what other ops give, which others may read too."""
    inside = set(nodes)
    passing: set[fx.Node] = set()
    own = []
    for node in (n for n in flow.nodes if n in inside and flow.is_data(n)):
        inputs = [n for n in data_inputs(node) if flow.is_data(n)]
        if _is_plain(flow, node, inputs) and all(n in flow.labels or n in passing or n not in inside for n in inputs):
            passing.add(node)
        else:
            own.append(node)
    return own


def mixes(flow: Dataflow, nodes: list[fx.Node]) -> bool:
    """Whether any of ``nodes`` brings tokens together."""
    return any(is_tensor(n) and (_contracts_tokens(flow, n) or _pools(flow, n)) for n in nodes)


def _contracts_tokens(flow: Dataflow, node: fx.Node) -> bool:
    if base_name(node) not in CONTRACTIONS:
        return base_name(node) in _MIXING
    weights = [n for n in node.all_input_nodes if flow.parameter(n, through=_SLICED) is not None]
    return not weights and not flow.is_per_token(node)


def _pools(flow: Dataflow, node: fx.Node) -> bool:
    """Whether ``node`` sums over a part of every sequence: the dims before it have fewer elements than tokens."""
    dims = argument(node, 1, "dim")
    dims = [dims] if isinstance(dims, int) else dims
    if base_name(node) not in ("sum", "mean") or not dims or len(dims) != 1 or not is_tensor(node.args[0]):
        return False
    shape = shape_of(node.args[0])  # type: ignore[arg-type]
    before = math.prod(shape[: int(dims[0]) % len(shape)])
    within = before * shape[int(dims[0])]
    return TRACE_BATCH < before < flow.tokens <= within and within % flow.tokens == 0


def _name(flow: Dataflow, found: list[Found], regions: list[Found], cores: dict[Found, Core]) -> None:
    """Roles that follow from the regions: gates, and the linears around mixers."""
    reads = {region: flow.sources(*flow.operands(region)) for region in regions}
    for region, sources in reads.items():
        for core in cores.values():
            if region.role == "combine" and set(sources) <= {core.op, core.query} and core.op in sources:
                region.role = "attn_gate"
        if region.role == "combine" and any(s.role == "down" for s in sources):
            region.role = "shared_gated"
            for source in sources:
                if is_matrix(source) and not source.role:
                    source.role = "shared_gate"
    loose = [op for op in found if is_matrix(op) and not op.role]
    read = {op: flow.sources(*flow.operands(op)) for op in (*found, *regions)}
    mixers = {op for op in regions if op.role == "mixer"}
    for op in loose:
        readers = [other for other, sources in read.items() if op in sources]
        before = any(_comes_from(read, source, mixers) for source in read[op])
        after = any(r in mixers or (r.role == "norm" and _is_read_by(read, r, mixers)) for r in readers)
        op.role = "mixer_in" if after else "mixer_out" if before else "linear"
    for op in loose:
        readers = [other for other, sources in read.items() if op in sources]
        onward = any(r.role == "mixer_in" or (r.role == "norm" and _is_read_by(read, r, loose)) for r in readers)
        if op.role == "mixer_out" and onward:
            op.role = "mixer_in"
    around = {op for op in loose if op.role == "mixer_in"} | set(regions)
    for op in found:
        if op.role == "norm" and read[op] and set(read[op]) <= around:
            op.role = "mixer_norm"


def _comes_from(read: dict[Found, tuple[Found, ...]], op: Found, origins: Collection[Found]) -> bool:
    """Whether ``op`` is one of ``origins`` or reads one, past norms and combinations."""
    if op in origins:
        return True
    return op.role in ("norm", "combine") and any(_comes_from(read, s, origins) for s in read.get(op, ()))


def _is_read_by(read: dict[Found, tuple[Found, ...]], op: Found, readers: Collection[Found]) -> bool:
    return any(op in read.get(reader, ()) for reader in readers)
