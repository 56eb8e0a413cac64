"""One block from its nodes: recognise, give roles, account for what is left, name, build."""

from collections.abc import Iterable
from dataclasses import dataclass

from torch import fx

from autoshard.ir import BLOCK_INPUT, FusedOp
from autoshard.tracing.build import OpBuilder
from autoshard.tracing.build_state import account_for_state
from autoshard.tracing.context import GraphContext
from autoshard.tracing.dataflow import BLOCK_INPUT_SOURCE, Dataflow, Found, is_tensor
from autoshard.tracing.recognise import recognise
from autoshard.tracing.roles import Roles, assign_roles

_ROLE_NAMES = {"embedding": "embed", "latent_attention": "attention"}


@dataclass(frozen=True, kw_only=True)
class BuiltBlock:
    """The ops of a block, and the op name of every node that is one's own computation or parameter."""

    ops: tuple[FusedOp, ...]
    placed: dict[str, str]


def build_block(
    context: GraphContext, nodes: list[fx.Node], names: Iterable[str], *, layer: str = "", last: bool = False
) -> BuiltBlock:
    """Build the ops of ``nodes``. ``names`` are FQNs of parameters that the block must account for.

    ``layer`` is the FQN of the layer that the block is; ``last`` says that it is the model's final block, so that its
    closing norm is the final one.
    """
    placeholders = context.ledger.placeholders
    flow = Dataflow(
        nodes,
        placeholders,
        context.data,
        tokens=context.tokens,
        length=context.length,
        is_per_token=context.is_per_token,
    )
    found = recognise(flow, context.token_ids)
    roles = assign_roles(flow, found, context.output)
    builder = OpBuilder(flow=flow, roles=roles, context=context)
    builder.drop_illegible(found)
    for op in found:
        if not op.role:
            op.reason = op.reason or f"a {op.shape} whose place in the block is not recognised"
    found += _leftovers(context, flow, found, names)
    position = {n: i for i, n in enumerate(nodes)}
    found.sort(key=lambda op: position.get(op.node, len(nodes)))
    found = _norms_beside_attention(found)

    builder.names = _name_all(flow, roles, found, last=last)
    ops: list[FusedOp] = []
    placed: dict[str, str] = {}
    for op in found:
        ffn = roles.ffn_into(op)
        if ffn is not None:
            ops.append(builder.activation(ffn))
        ops.append(builder.build(op))
        placed |= {n.name: ops[-1].name for n in (*op.nodes, *op.owned())}
    if layer:
        account_for_state(ops, layer, context.kept(layer))
    return BuiltBlock(ops=tuple(ops), placed=placed)


def _leftovers(context: GraphContext, flow: Dataflow, found: list[Found], names: Iterable[str]) -> list[Found]:
    """Parameters that no op owns, one opaque op per module that holds any."""
    owned = {context.ledger.placeholders[p] for op in found for p in op.owned()}  # tied ones have several inputs
    groups: dict[str, Found] = {}
    inside = set(flow.nodes)
    for name in names:
        placeholder = context.ledger.placeholder(name)
        if name in owned or context.ledger.is_claimed(name):
            continue
        module = name.rpartition(".")[0]
        users = [n for n in placeholder.users if n in inside and is_tensor(n)]
        node = users[0] if users else placeholder
        group = groups.setdefault(module, Found(shape="opaque", node=node, fqn=module))
        group.reason = "parameters used in a way that is not recognised" if users else "parameters that are not used"
        group.parameters.append(placeholder)
        flow.label(group, *(n for n in users if n not in flow.labels))
    return list(groups.values())


def _norms_beside_attention(found: list[Found]) -> list[Found]:
    """q/k norms moved to just before attention: q, k, v stand together, whichever order the model computes them in."""
    norms = [op for op in found if op.role in ("q_norm", "k_norm")]
    rest = [op for op in found if op not in norms]
    at = next((i for i, op in enumerate(rest) if op.role in ("attention", "latent_attention")), 0)
    return [*rest[:at], *norms, *rest[at:]]


def _name_all(flow: Dataflow, roles: Roles, found: list[Found], *, last: bool) -> dict[Found, str]:
    """A unique canonical name for every op; activations are named with the feed-forward network they belong to."""
    names: dict[Found, str] = {BLOCK_INPUT_SOURCE: BLOCK_INPUT}
    used: set[str] = set()
    for op in found:
        wanted = _canonical(flow, found, op, last=last)
        ffn = roles.ffn_into(op)
        if ffn is not None:
            ffn.activation_name = _unique("experts_act" if ffn.routed else "act", used)
        names[op] = _unique(wanted, used)
    return names


def _unique(name: str, used: set[str]) -> str:
    """``name``, or with the first free suffix ``_2``, ``_3``, ..."""
    candidate, i = name, 2
    while candidate in used:
        candidate, i = f"{name}_{i}", i + 1
    used.add(candidate)
    return candidate


def _canonical(flow: Dataflow, found: list[Found], op: Found, *, last: bool) -> str:
    """The name that follows from what an op is."""
    if op.role == "norm":
        return _norm_name(flow, found, op, last=last)
    if op.role == "add":
        kinds = {s.role for operand in op.node.all_input_nodes for s in _past_norms(flow, operand)}
        if kinds & {"o", "mixer_out"}:
            return "attn_add"
        return "ffn_add" if kinds & {"down", "experts_down", "shared_gated"} else "add"
    if not op.role:
        return op.shape
    return _ROLE_NAMES.get(op.role, op.role)


def _norm_name(flow: Dataflow, found: list[Found], op: Found, *, last: bool) -> str:
    """By what reads the norm; failing that, by what it reads."""
    readers = {o.role for o in found if o is not op and op in flow.sources(*flow.operands(o))}
    if readers & {"q", "k", "v", "qkv", "kv", "q_a", "kv_a", "mixer_in"}:
        return "attn_norm"
    if readers & {"router", "gate", "up", "experts_up", "experts_gate"}:
        return "ffn_norm"
    if "head" in readers or last:
        return "final_norm"
    read = {s.role for s in flow.sources(*flow.operands(op))}
    if read & {"o", "attention", "mixer_out"}:
        return "attn_post_norm"
    return "ffn_post_norm" if read & {"down", "experts_down", "shared_gated"} else "norm"


def _past_norms(flow: Dataflow, node: fx.Node) -> list[Found]:
    """Sources of ``node``, looking through norms; a residual tells nothing about its branch."""
    if flow.is_residual(node):
        return []
    out: list[Found] = []
    for source in flow.sources(node):
        out += flow.sources(*flow.operands(source)) if source.role == "norm" else (source,)
    return out
