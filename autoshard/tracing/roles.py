"""Second pass over a block: what each recognised op is to the computation, by where its data comes from and goes.

=============== =============================================================================
role            how it is known
=============== =============================================================================
q, k, v, o ...  around attention: see :mod:`autoshard.tracing.attention_roles`
router          the linear whose scores a ``topk`` ranks
experts_up      a contraction with a three-dimensional weight, from tokens (not from other experts)
experts_down    one that comes from ``experts_up`` only
gate, up        linears that reach another linear through a non-linearity only; the gate is the one under it
down            that other linear
head            the linear whose result the model returns
=============== =============================================================================
"""

from dataclasses import dataclass, field

from torch import fx

from autoshard.tracing.attention_roles import Core, assign_attention, assign_output, is_matrix
from autoshard.tracing.axes import base_name, shape_of
from autoshard.tracing.dataflow import Dataflow, Found
from autoshard.tracing.expert_groups import group_experts
from autoshard.tracing.regions import insert_regions, mixes

_NONLINEAR = frozenset(
    [
        "silu",
        "silu_",
        "gelu",
        "relu",
        "relu_",
        "relu6",
        "sigmoid",
        "tanh",
        "elu",
        "celu",
        "selu",
        "leaky_relu",
        "hardswish",
        "hardsigmoid",
        "softplus",
        "mish",
        "erf",
        "exp",
        "pow",
        "square",
        "clamp",
    ]
)
_LOOK_UPS = frozenset(["index", "index_select", "gather", "embedding"])


@dataclass(eq=False, kw_only=True)
class Ffn:
    """Up projections, the activation between (named when the block's ops are), and the down projection they reach."""

    ups: tuple[Found, ...]
    down: Found
    routed: bool
    router: Found | None = None
    activation_name: str = ""


@dataclass(kw_only=True)
class Roles:
    """Relations that building the ops needs, beyond each op's own ``role``."""

    cores: dict[Found, Core] = field(default_factory=dict)
    ffns: list[Ffn] = field(default_factory=list)
    top_k: dict[Found, int] = field(default_factory=dict)
    router_of: dict[Found, Found] = field(default_factory=dict)
    by_maximum: set[Found] = field(default_factory=set)

    def experts_per_token(self, router: Found, experts: int) -> int:
        """Of a router's choices, those that fall on experts with weights, if all rows are chosen alike."""
        assert router.weight is not None
        return max(1, self.top_k[router] * experts // shape_of(router.weight)[0])

    def ffn_into(self, down: Found) -> Ffn | None:
        """The feed-forward network that ends in ``down``."""
        return next((f for f in self.ffns if f.down is down), None)


def assign_roles(flow: Dataflow, found: list[Found], output: set[fx.Node]) -> Roles:
    """Fill ``role`` of every op; ``output`` are the nodes the model returns. Ops without a role stay ``""``."""
    roles = Roles()
    for op in found:
        if op.shape in ("embedding", "add", "norm"):
            op.role = op.shape
    for op in found:
        core = assign_attention(flow, op) if op.shape == "attention" else None
        if core is not None:
            roles.cores[op] = core
            assign_output(flow, core, found)
    found += dict.fromkeys(c.indexer for c in roles.cores.values() if c.indexer is not None)
    _routers(flow, found, roles)
    group_experts(flow, found)
    _experts(flow, found, roles)
    for op in found:
        if is_matrix(op) and not op.role and flow.sources(*flow.operands(op)) and _is_output(flow, op, output):
            op.role = "head"
    _dense_ffns(flow, found, roles)
    for op in [b for b in found if _is_bank(b) and not b.role]:
        flow.forget(op)  # matrices of experts that are no feed-forward network: part of what lies between known ops
        found.remove(op)
    for op in found:
        if op.shape == "attention" and not op.role:
            op.role = "attention"
            roles.cores[op] = Core(op=op, unclear=True)
    found += insert_regions(flow, found, roles.cores)
    return roles


def _is_bank(op: Found) -> bool:
    return op.experts > 0 or op.shape == "contraction" and op.weight is not None and len(shape_of(op.weight)) == 3


def _routers(flow: Dataflow, found: list[Found], roles: Roles) -> None:
    """A matrix whose product a ``topk`` ranks; of several ``topk`` (groups first, experts then) the last counts.

    Some models pick one expert after the other by an argument of the maximum; then as many are chosen as there are.
    """
    for node in flow.nodes:
        if base_name(node) != "topk":
            continue
        ranked = [s for s in flow.sources(node) if s in found and is_matrix(s) and s.role in ("", "router")]
        if len(ranked) == 1:
            ranked[0].role = "router"
            roles.top_k[ranked[0]] = int(node.args[1])  # type: ignore[arg-type]
            _own_correction(flow, found, ranked[0], node)
    for node in flow.nodes:
        picks = base_name(node) == "argmax" or (base_name(node) == "max" and any(_is_index(u) for u in node.users))
        ranked = [s for s in flow.sources(node) if s in found and is_matrix(s)] if picks else []
        if len(ranked) == 1 and (not ranked[0].role or (ranked[0].role == "router" and ranked[0] in roles.by_maximum)):
            ranked[0].role = "router"
            roles.by_maximum.add(ranked[0])
            roles.top_k[ranked[0]] = roles.top_k.get(ranked[0], 0) + 1
    _own_scales(flow, found, [op for op in found if op.role == "router"])


def _own_scales(flow: Dataflow, found: list[Found], routers: list[Found]) -> None:
    """Give a router the parameter of one number per expert that the chosen experts' numbers are looked up in."""
    owned = {p for op in found for p in op.owned()}
    for node in flow.nodes:
        if base_name(node) not in _LOOK_UPS:
            continue
        table, *positions = node.all_input_nodes
        parameter = flow.parameter(table)
        sources = flow.sources(*positions)
        if parameter is None or parameter in owned or len(sources) != 1 or sources[0] not in routers:
            continue
        if shape_of(parameter) == shape_of(sources[0].weight)[:1]:  # type: ignore[arg-type]
            sources[0].parameters.append(parameter)
            owned.add(parameter)


def _own_correction(flow: Dataflow, found: list[Found], router: Found, ranking: fx.Node) -> None:
    """Give the router the parameters that correct its scores before they are ranked."""
    owned = {p for op in found for p in op.owned()}
    for node in flow.between(ranking):
        for parameter in map(flow.parameter, node.all_input_nodes):
            if parameter is not None and parameter not in owned and parameter not in router.parameters:
                router.parameters.append(parameter)


def _is_index(node: fx.Node) -> bool:
    return base_name(node) == "getitem" and bool(node.args[1] == 1) and len(node.users) > 0


def _experts(flow: Dataflow, found: list[Found], roles: Roles) -> None:
    """Pairs of expert banks. A bank's router is among its sources, or has as many experts (dense formulations)."""
    banks = [op for op in found if _is_bank(op)]
    routers = [op for op in found if op.role == "router"]
    for down in banks:
        ups = tuple(s for s in flow.sources(*flow.operands(down)) if s in banks)
        others = [s for s in flow.sources(*flow.operands(down)) if s not in banks and s not in routers]
        if not ups or others or any(u.role for u in ups):
            continue
        reached = [r for r in flow.sources(*flow.operands(ups[0])) if r in routers]
        alike = [r for r in routers if _rows(r) == _rows(down)]
        router = next(iter((*reached, *alike)), None) or _unranked(flow, found, roles, ups[0])
        rows = min(_rows(op) for op in (*ups, down))
        if router is None or rows > _rows(router) or (router not in reached and rows < _rows(router)):
            continue
        if len({_rows(op) for op in (*ups, down)}) > 1 and not all(op.experts for op in (*ups, down)):
            continue
        for op in (*ups, down):
            op.experts = rows if op.experts else 0
        down.role = "experts_down"
        ups = _gate_first(flow, ups, down)
        for i, up in enumerate(ups):
            up.role = "experts_gate" if len(ups) == 2 and i == 0 else "experts_up"
        roles.ffns.append(Ffn(ups=ups, down=down, routed=True, router=router))
        for op in (*ups, down):
            roles.router_of[op] = router


def _unranked(flow: Dataflow, found: list[Found], roles: Roles, up: Found) -> Found | None:
    """The router of experts that a table chooses: the one matrix with a row per expert, which only weighs them."""
    rows = shape_of(up.node)[0]
    tokens = flow.sources(*flow.operands(up))
    alike = [op for op in found if is_matrix(op) and not op.role and _rows(op) == _rows(up)]
    alike = [op for op in alike if flow.sources(*flow.operands(op)) == tokens]
    if len(alike) != 1 or len(shape_of(up.node)) != 2 or rows % flow.tokens:
        return None
    alike[0].role = "router"
    roles.top_k[alike[0]] = rows // flow.tokens
    return alike[0]


def _dense_ffns(flow: Dataflow, found: list[Found], roles: Roles) -> None:
    """One or two matrices that reach a third through a non-linearity and nothing else."""
    for down in found:
        if not is_matrix(down) or down.role:
            continue
        ups = flow.sources(*flow.operands(down))
        plain = all(u in found and is_matrix(u) and not u.role for u in ups)
        between = flow.between(*flow.operands(down))
        passed = {base_name(n) for n in between}
        if not plain or len(ups) not in (1, 2) or not passed & _NONLINEAR or mixes(flow, between):
            continue
        ups = _gate_first(flow, ups, down)
        down.role = "down"
        for i, up in enumerate(ups):
            up.role = "gate" if len(ups) == 2 and i == 0 else "up"
        roles.ffns.append(Ffn(ups=ups, down=down, routed=False))


def _gate_first(flow: Dataflow, ups: tuple[Found, ...], down: Found) -> tuple[Found, ...]:
    """The projection under the non-linearity first."""
    for node in flow.between(*flow.operands(down)):
        gates = [s for s in flow.sources(node) if s in ups]
        if base_name(node) in _NONLINEAR and len(gates) == 1:
            return (gates[0], *(u for u in ups if u is not gates[0]))
    return ups


def _rows(op: Found) -> int:
    assert op.weight is not None
    return op.experts or shape_of(op.weight)[0]


def _is_output(flow: Dataflow, op: Found, output: set[fx.Node]) -> bool:
    """Whether the model returns this op's result."""
    return any(op in flow.sources(node) for node in output)
