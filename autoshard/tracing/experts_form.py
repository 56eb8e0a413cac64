"""How a model's code runs its experts (`autoshard.ir.ExpertsLinear.form`), by what was traced."""

import re
from typing import Literal

from torch import fx, nn

from autoshard.ir import Param
from autoshard.tracing.axes import base_name, shape_of
from autoshard.tracing.context import GraphContext
from autoshard.tracing.dataflow import LAYOUT

Form = Literal["routed", "listed", "batched", "inside"]
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")


def experts_form(context: GraphContext, params: tuple[Param, ...], fqn: str, *, down: fx.Node, experts: int) -> Form:
    """The form of the experts that own ``params`` in the module ``fqn``; ``down`` is their last product."""
    stacked = all(p.role != "slice" and len(p.shape) == (2 if p.role == "bias" else 3) for p in params)
    if stacked and context.takes_routing(fqn):
        return "routed"
    if stacked:
        return "batched" if _is_summed_outside(context, fqn, down, experts) else "inside"
    return "listed" if _are_listed(context.model, params, experts) else "inside"


def _are_listed(model: nn.Module, params: tuple[Param, ...], experts: int) -> bool:
    """Whether every expert is a child of one list, a module with a forward that has all of its parameters."""
    found: dict[str, int] = {}
    for p in params:
        numbers = list(_NUMBER.finditer(p.fqn))
        if p.role == "slice" or not numbers:
            return False
        found[p.fqn[: numbers[-1].end()]] = int(numbers[-1].group())
    lists = {name.rpartition(".")[0] for name in found}
    if len(lists) != 1 or sorted(found.values()) != list(range(experts)):
        return False
    return all(type(model.get_submodule(name)).forward is not nn.Module.forward for name in found)


def _is_summed_outside(context: GraphContext, fqn: str, down: fx.Node, experts: int) -> bool:
    """Whether the last product has rows for every expert, and they are next summed, by another module."""
    if len(shape_of(down)) != 3 or shape_of(down)[0] != experts:
        return False
    node = down
    while True:
        users = list(node.users)
        if len(users) != 1:
            return False
        node = users[0]
        if base_name(node) == "sum":
            break
        if base_name(node) not in LAYOUT:
            return False
    (summed,) = node.all_input_nodes
    dims = node.args[1] if len(node.args) > 1 else []
    around = context.owners.get(node.name, "")
    return dims == [0] and shape_of(summed)[0] == experts and len(shape_of(summed)) == 3 and around != fqn
