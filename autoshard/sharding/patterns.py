"""Named patterns of choices: Megatron's, the two all-gather ones of the paper, everything replicated.

A pattern is a choice per *role*, filled into any model by what the op is, not by its name; a choice that is not
offered at the given degrees becomes "replicated".
"""

from collections.abc import Mapping
from typing import Literal

from autoshard.ir import (
    Activation,
    Attention,
    Block,
    Embedding,
    ExpertsLinear,
    FusedOp,
    LatentAttention,
    Linear,
    Mixer,
    Norm,
    OpGraph,
    Router,
)
from autoshard.sharding.degrees import Degrees
from autoshard.sharding.legality import axis_sizes, choice_key, mesh_of, model_choices, option_illegal
from autoshard.sharding.option import Choice
from autoshard.sharding.space import consumers, free_ops, options
from autoshard.sharding.strategy import DISPATCH, RESIDUAL, Strategy

Role = Literal["embed", "norm", "in", "core", "out", "router", "act", "head", "latent"]
"""``in``: matrices read from the residual side (q, k, v, gate, up, experts_up); ``out``: those that go back to it;
``latent``: those that make a latent (q_a, kv_a of MLA), which Megatron and the engines run whole on every rank."""

PATTERNS: Mapping[str, Mapping[Role, Choice]] = {
    # column- then row-parallel, one all_reduce per half block
    "megatron": {"embed": 0, "in": 0, "core": 0, "out": 1, "act": 0, "head": 0},
    # the second matrix split on its output, all_gather between the two and after
    "gather_out": {"embed": 1, "in": 0, "core": 0, "out": 0, "act": 0, "head": 0},
    # both split on what they contract: partial sums reduced between the two and after
    "gather_in": {"embed": 1, "in": 1, "core": 0, "out": 1, "act": 0, "router": 1, "head": 1},
    "replicated": {},
}


def role_of(block: Block, op: FusedOp) -> Role:
    """The role of an op by what it is and what reads it."""
    match op:
        case Embedding():
            return "embed"
        case Norm():
            return "norm"
        case Attention() | LatentAttention() | Mixer():
            return "core"
        case Router():
            return "router"
        case Activation():
            return "act"
        case ExpertsLinear():
            return "in" if op.stage == "up" else "out"
        case Linear() if op.is_head:
            return "head"
        case _:
            readers = [reader for reader, _ in consumers(block, op.name)]
            if any(isinstance(r, Norm) and _is_expanded(block, r) for r in readers):
                return "latent"
            after_mixer = any(isinstance(o, Mixer) and o.name in op.inputs for o in block.ops)
            return "out" if after_mixer or any(reader.kind == "add" for reader in readers) else "in"


def _is_expanded(block: Block, norm: Norm) -> bool:
    """Whether a matrix reads the normalised tensor, so that it is a latent and not heads."""
    return any(isinstance(reader, Linear) for reader, _ in consumers(block, norm.name))


def pattern_strategy(
    graph: OpGraph,
    degrees: Degrees,
    pattern: str,
    *,
    residual: Choice = None,
    dispatch: Choice = None,
    uneven: bool = False,
) -> Strategy:
    """The strategy of a named pattern at given degrees. Raises KeyError for an unknown pattern."""
    roles = PATTERNS[pattern]
    sizes = axis_sizes(mesh_of(graph, degrees))
    wanted_of = {RESIDUAL: residual, DISPATCH: dispatch}
    chosen: dict[str, Choice] = {
        key: wanted_of[key] if offered[wanted_of[key]] is None else None
        for key, offered in model_choices(graph, sizes, pp=degrees.pp).items()
    }
    layout = Strategy(degrees=degrees, choices=tuple(chosen.items())).residual
    for block in graph.components():
        for op in free_ops(block):
            role = role_of(block, op)
            wanted = residual if role == "norm" else roles.get(role)
            legal = {
                o.choice for o in options(block, op) if option_illegal(o, sizes, layout, op, uneven=uneven) is None
            }
            chosen.setdefault(choice_key(graph, block, op), wanted if wanted in legal else None)
    return Strategy(degrees=degrees, choices=tuple(chosen.items()), uneven=uneven)
