"""Experts written one by one: the matrices of all experts at the same place become one op.

Either each expert takes its slice of one parameter, or each has parameters of its own that differ in one number of
their name, as children of a ``ModuleList`` do. As many of them as a router has rows are one matrix of every expert.
"""

import re

from torch import fx

from autoshard.tracing.attention_roles import is_matrix
from autoshard.tracing.axes import shape_of
from autoshard.tracing.dataflow import Dataflow, Found

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")


def group_experts(flow: Dataflow, found: list[Found]) -> None:
    """Replace, in ``found``, the matrices of single experts by one op for all of them."""
    counts = {shape_of(op.weight)[0] for op in found if op.role == "router" and op.weight is not None}
    for members in _groups(flow, found):
        if len(members) not in counts:
            continue
        first = members[0]
        merged = Found(
            shape="contraction",
            node=first.node,
            weight=first.weight,
            bias=first.bias,
            experts=len(members),
            is_slice=first.is_slice,
        )
        owned = dict.fromkeys(p for op in members for p in op.owned())
        merged.parameters = [p for p in owned if p not in (merged.weight, merged.bias)]
        for op in members:
            flow.label(merged, *op.nodes)
            found.remove(op)
        found.append(merged)


def _groups(flow: Dataflow, found: list[Found]) -> list[list[Found]]:
    sliced: dict[fx.Node, list[Found]] = {}
    numbered: dict[tuple[str, tuple[int, ...]], list[Found]] = {}
    for op in found:
        if op.shape != "contraction" or op.role or op.weight is None:
            continue
        if op.is_slice:
            sliced.setdefault(op.weight, []).append(op)
        elif is_matrix(op):
            name = flow.name_of(op.weight)
            numbers = list(_NUMBER.finditer(name))
            if len(numbers) < 2:  # the first is the layer's
                continue
            at = numbers[-1]
            key = (name[: at.start()] + "*" + name[at.end() :], shape_of(op.weight))
            numbered.setdefault(key, []).append(op)
    return [g for g in (*sliced.values(), *numbered.values()) if len(g) > 1]
