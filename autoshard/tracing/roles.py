"""Second pass over a block: what each recognised op is to the computation, by where its data comes from and goes.

=============== =============================================================================
role            how it is known
=============== =============================================================================
q, k, v         the linears that softmax attention's three inputs come from (past norms and rope)
q_norm, k_norm  norms between those and attention
o               the linear whose only source is attention
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

from autoshard.tracing.axes import base_name, shape_of
from autoshard.tracing.dataflow import Dataflow, Found

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

    attention_inputs: dict[Found, tuple[Found, Found, Found]] = field(default_factory=dict)
    ffns: list[Ffn] = field(default_factory=list)
    top_k: dict[Found, int] = field(default_factory=dict)
    router_of: dict[Found, Found] = field(default_factory=dict)

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
        if op.shape == "attention":
            _attention(flow, op, roles)
    _routers(flow, found, roles)
    _experts(flow, found, roles)
    for op in found:
        if _is_matrix(op) and not op.role and flow.sources(*flow.operands(op)) and _is_output(flow, op, output):
            op.role = "head"
    _dense_ffns(flow, found, roles)
    return roles


def _is_matrix(op: Found) -> bool:
    return op.shape == "contraction" and op.weight is not None and len(shape_of(op.weight)) == 2


def _is_bank(op: Found) -> bool:
    return op.shape == "contraction" and op.weight is not None and len(shape_of(op.weight)) == 3


def _attention(flow: Dataflow, op: Found, roles: Roles) -> None:
    """q, k, v, their norms, and o. Attention stays without a role unless all three inputs are linears of their own."""
    projections: list[Found] = []
    norms: list[Found | None] = []
    for tensor in op.node.args[:3]:
        assert isinstance(tensor, fx.Node)
        sources, norm = flow.sources(tensor), None
        if len(sources) == 1 and sources[0].role == "norm":
            norm = sources[0]
            sources = flow.sources(*flow.operands(norm))
        if len(sources) != 1 or not _is_matrix(sources[0]) or sources[0].role:
            return
        projections.append(sources[0])
        norms.append(norm)
    if len(set(projections)) != 3 or norms[2] is not None:
        return
    op.role = "attention"
    for name, projection, norm in zip("qkv", projections, norms, strict=True):
        projection.role = name
        if norm is not None:
            norm.role = f"{name}_norm"
    roles.attention_inputs[op] = (projections[0], projections[1], projections[2])
    for other in flow.labels.values():
        if _is_matrix(other) and not other.role and flow.sources(*flow.operands(other)) == (op,):
            other.role = "o"


def _routers(flow: Dataflow, found: list[Found], roles: Roles) -> None:
    """A matrix whose product a ``topk`` ranks; of several ``topk`` (groups first, experts then) the last counts."""
    for node in flow.nodes:
        if base_name(node) != "topk":
            continue
        ranked = [s for s in flow.sources(node) if s in found and _is_matrix(s) and s.role in ("", "router")]
        if len(ranked) == 1:
            ranked[0].role = "router"
            roles.top_k[ranked[0]] = int(node.args[1])  # type: ignore[arg-type]


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
        router = next(iter((*reached, *alike)), None)
        if router is None or any(_rows(op) != _rows(router) for op in (*ups, down)):
            continue
        down.role = "experts_down"
        ups = _gate_first(flow, ups, down)
        for i, up in enumerate(ups):
            up.role = "experts_gate" if len(ups) == 2 and i == 0 else "experts_up"
        roles.ffns.append(Ffn(ups=ups, down=down, routed=True, router=router))
        for op in (*ups, down):
            roles.router_of[op] = router


def _dense_ffns(flow: Dataflow, found: list[Found], roles: Roles) -> None:
    """One or two matrices that reach a third through a non-linearity and nothing else."""
    for down in found:
        if not _is_matrix(down) or down.role:
            continue
        ups = flow.sources(*flow.operands(down))
        plain = all(u in found and _is_matrix(u) and not u.role for u in ups)
        passed = {base_name(n) for n in flow.between(*flow.operands(down))}
        if not plain or len(ups) not in (1, 2) or not passed & _NONLINEAR:
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
    return shape_of(op.weight)[0]


def _is_output(flow: Dataflow, op: Found, output: set[fx.Node]) -> bool:
    """Whether the model returns this op's result."""
    return any(op in flow.sources(node) for node in output)
