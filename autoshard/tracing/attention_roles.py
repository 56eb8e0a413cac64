"""What the matrices and norms around an attention core are to it.

=================== =============================================================================================
role                how it is known
=================== =============================================================================================
q, k, v             three linears that the core's three inputs come from, past norms and rope
qkv, kv, qk         one linear that several of the inputs come from
q_norm, k_norm      norms between those and the core
kv_b, kv_a          values come from ``kv_b`` alone; it reads, past a norm, ``kv_a``; keys read ``kv_b`` and ``kv_a``
q_b, q_a            queries come from ``q_b``, which reads a norm of ``q_a`` alone
indexer             the ``topk`` that decides, through the mask, which keys the core looks at
o                   the linear that reads the core, alone or under a gate of its own query projection
=================== =============================================================================================
"""

from dataclasses import dataclass, field

from torch import fx

from autoshard.tracing.axes import base_name, shape_of
from autoshard.tracing.dataflow import Dataflow, Found
from autoshard.tracing.softmax import mask_operands, pooled_keys


@dataclass(eq=False, kw_only=True)
class Core:
    """An attention core and the ops around it.

    ``inputs`` are the ops it reads, in order; ``key`` is the projection whose rows hold its kv heads. ``latent`` is
    the projection that makes the cached latent (MLA only). ``unclear`` marks a core whose inputs are not projections.
    ``pooled`` is the tensor of keys, pooled from several tokens each, that stand beside the tokens' own.
    """

    op: Found
    inputs: tuple[Found, ...] = ()
    query: Found | None = None
    key: Found | None = None
    latent: Found | None = None
    unclear: bool = False
    indexer: Found | None = None
    pooled: fx.Node | None = None
    norms: list[Found] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class _Reach:
    """One input of a core: the matrices it comes from and the norms passed on the way."""

    matrices: tuple[Found, ...]
    norms: tuple[Found, ...]
    clean: bool


def assign_attention(flow: Dataflow, op: Found) -> Core | None:
    """Give roles to an attention core and what feeds it; None (and no roles) if its inputs are not understood."""
    beside = pooled_keys(flow, op)
    query, key, value = (_reach(flow, tensor) for tensor in (op if beside is None else beside[0]).tensors)
    if not (query.clean and key.clean and value.clean) or len(query.matrices) != 1 or len(value.matrices) != 1:
        return None
    latent = _latent(flow, query, key, value) if beside is None else None
    if latent is not None:
        core = _assign_latent(flow, op, query, key, value, latent)
    elif len(key.matrices) == 1 and all(len(r.norms) <= 1 for r in (query, key, value)):
        core = _assign_plain(op, query, key, value)
    else:
        return None
    core.indexer = _indexer(flow, op)
    core.pooled = None if beside is None else beside[1]
    return core


def assign_output(flow: Dataflow, core: Core, found: list[Found]) -> None:
    """Name the linear that reads the core ``o``."""
    for other in found:
        if not is_matrix(other) or other.role:
            continue
        sources = flow.sources(*flow.operands(other))
        if core.op in sources and all(s in (core.op, core.query) for s in sources):
            other.role = "o"


def is_matrix(op: Found) -> bool:
    """Whether ``op`` multiplies by a two-dimensional weight."""
    return op.shape == "contraction" and op.weight is not None and len(shape_of(op.weight)) == 2


def _reach(flow: Dataflow, tensor: fx.Node) -> _Reach:
    matrices: dict[Found, None] = {}
    norms: dict[Found, None] = {}
    pending = list(flow.sources(tensor))
    clean = bool(pending)
    while pending:
        source = pending.pop(0)
        if source.shape == "norm" and source not in norms:
            norms[source] = None
            pending += flow.sources(*flow.operands(source))
        elif is_matrix(source) and not source.role:
            matrices[source] = None
        elif source.shape != "norm":
            clean = False
    return _Reach(matrices=tuple(matrices), norms=tuple(norms), clean=clean)


def _assign_plain(op: Found, query: _Reach, key: _Reach, value: _Reach) -> Core:
    reaches = {"q": query, "k": key, "v": value}
    used: dict[Found, str] = {}
    for letter, reach in reaches.items():
        (projection,) = reach.matrices
        used[projection] = used.get(projection, "") + letter
    for projection, letters in used.items():
        projection.role = letters
    norms = []
    for letter, reach in reaches.items():
        for norm in reach.norms:
            norm.role = norm.role if norm in norms else f"{letter}_norm"
            norms.append(norm)
    op.role = "attention"
    return Core(
        op=op, inputs=tuple(used), query=query.matrices[0], key=key.matrices[0], norms=list(dict.fromkeys(norms))
    )


_Latent = tuple[Found, Found | None, Found | None]


def _latent(flow: Dataflow, query: _Reach, key: _Reach, value: _Reach) -> _Latent | None:
    """(kv_a, its norm, a rope key of its own) if keys and values are made from one latent."""
    (expanded,) = value.matrices
    if expanded not in key.matrices or expanded in query.matrices:
        return None
    behind = _behind(flow, expanded)
    if behind is None:
        return None
    down, norm = behind
    others = [m for m in key.matrices if m not in (expanded, down)]
    if len(others) > 1:
        return None
    return down, norm, (others[0] if others else None)


def _behind(flow: Dataflow, matrix: Found) -> tuple[Found, Found | None] | None:
    """The matrix of lower rank that ``matrix`` alone reads, and the norm between."""
    sources = flow.sources(*flow.operands(matrix))
    if len(sources) != 1:
        return None
    norm = None
    if sources[0].shape == "norm":
        norm = sources[0]
        sources = flow.sources(*flow.operands(norm))
    if len(sources) != 1 or not is_matrix(sources[0]) or sources[0].role:
        return None
    return sources[0], norm


def _assign_latent(
    flow: Dataflow,
    op: Found,
    query: _Reach,
    key: _Reach,
    value: _Reach,
    latent: _Latent,
) -> Core:
    (expanded,), (wide,) = value.matrices, query.matrices
    down, norm, rope = latent
    narrow = _behind(flow, wide)
    expanded.role, down.role, wide.role = "kv_b", "kv_a", "q"
    norms = []
    if norm is not None:
        norm.role = "kv_a_norm"
    if narrow is not None:
        wide.role, narrow[0].role = "q_b", "q_a"
        if narrow[1] is not None:
            narrow[1].role = "q_a_norm"
    for letter, reach in (("q", query), ("k", key)):
        for other in reach.norms:
            if not other.role or other.role == "norm":
                other.role = f"{letter}_norm"
                norms.append(other)
    if rope is not None:
        rope.role = "k_rope"
    op.role = "latent_attention"
    return Core(op=op, inputs=(wide, expanded, rope or down), query=wide, key=expanded, latent=down, norms=norms)


def _indexer(flow: Dataflow, op: Found) -> Found | None:
    """The choice of keys: a ``topk`` in the core's mask over scores made from matrices of the block."""
    masks = mask_operands(flow, op)
    for source in flow.sources(*masks):
        if source.role == "indexer":
            return source
    picks = [n for n in flow.between(*masks) if base_name(n) == "topk"]
    if len(picks) != 1:
        return None
    pick = picks[0]
    region = [n for n in flow.between(pick) if n is not pick]
    products = [n for n in reversed(region) if base_name(n) in ("matmul", "bmm", "einsum")]
    products.sort(key=flow.nodes.index)
    if not products:
        return None
    query, key = products[0].all_input_nodes[-2:]
    found = Found(shape="indexer", node=pick, role="indexer", tensors=(query, key))
    roles = {"q": flow.sources(query), "k": flow.sources(key)}
    every = flow.sources(pick)
    flow.label(found, *region, pick)
    for letter, sources in roles.items():
        for source in sources:
            if source.shape == "norm":
                source.role = f"indexer_{letter}_norm"
                sources = flow.sources(*flow.operands(source))
                every = (*every, *sources)
    for source in every:
        if is_matrix(source) and not source.role:
            keyed = source in roles["k"] or _feeds(flow, source, roles["k"])
            source.role = "indexer_q" if source in roles["q"] else "indexer_k" if keyed else "indexer_weights"
    return found


def _feeds(flow: Dataflow, source: Found, readers: tuple[Found, ...]) -> bool:
    return any(source in flow.sources(*flow.operands(r)) for r in readers if r.shape == "norm")
