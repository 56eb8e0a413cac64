"""Experts written one by one: the matrices of all experts at the same place become one op.

Either each expert takes its slice of one parameter, or each has parameters of its own that differ in one number of
their name, as children of a ``ModuleList`` do. As many of them as a router has rows are one matrix of every expert. A
loop over the experts that were hit is traced for the first few; the others are the slices, or the parameters, that
look the same and that nobody else uses. A router may have rows beyond the experts with weights: those do nothing.
"""

import re
from math import prod

from torch import fx

from autoshard.tracing.attention_roles import is_matrix
from autoshard.tracing.axes import base_name, shape_of
from autoshard.tracing.dataflow import Dataflow, Found
from autoshard.tracing.recognise import CONTRACTIONS, CUT

_NUMBER = re.compile(r"(?<![^.])\d+(?=\.)")
_Key = tuple[str, tuple[int, ...]]


def group_experts(flow: Dataflow, found: list[Found]) -> None:
    """Replace, in ``found``, the matrices of single experts by one op for all of them."""
    counts = {shape_of(op.weight)[0] for op in found if op.role == "router" and op.weight is not None}
    if not counts:
        return
    found += _rows_of_flat_matrices(flow, counts)
    for members in _sliced(found):
        rows = _num_slices(flow, members[0])
        if rows <= max(counts):
            _merge(flow, found, members, [], rows)
    for key, members in _numbered(flow, found).items():
        alike = _unused_alike(flow, key, members)
        if len(members) + len(alike) in counts:
            _merge(flow, found, members, alike, len(members) + len(alike))


def _merge(flow: Dataflow, found: list[Found], members: list[Found], unused: list[fx.Node], experts: int) -> None:
    first = members[0]
    merged = Found(
        shape="contraction",
        node=first.node,
        weight=first.weight,
        bias=first.bias,
        experts=experts,
        is_slice=first.is_slice,
    )
    owned = dict.fromkeys(p for op in members for p in op.owned())
    merged.parameters = [p for p in (*owned, *unused) if p not in (merged.weight, merged.bias)]
    for op in members:
        flow.label(merged, *op.nodes)
        found.remove(op)
    found.append(merged)


def _rows_of_flat_matrices(flow: Dataflow, counts: set[int]) -> list[Found]:
    """Products with equal parts of one matrix, as many parts as a router has rows: of experts that lie below another.

    Of a matrix that only some parts are seen of, or that falls into another number of them, nothing is said.
    """
    parts: dict[fx.Node, list[Found]] = {}
    for node in flow.nodes:
        if base_name(node) not in CONTRACTIONS or node in flow.labels:
            continue
        for matrix in (n for n in node.all_input_nodes if len(shape_of(n)) == 2):
            weight = flow.parameter(matrix, through=CUT)
            if weight is not None and prod(shape_of(weight)) // max(1, prod(shape_of(matrix))) in counts:
                parts.setdefault(weight, []).append(Found(shape="contraction", node=node, weight=weight, is_slice=True))
    found = [op for members in parts.values() if len(members) > 1 for op in members]
    for op in found:
        flow.label(op, op.node)
    return found


def _sliced(found: list[Found]) -> list[list[Found]]:
    groups: dict[fx.Node, list[Found]] = {}
    for op in found:
        if op.shape == "contraction" and not op.role and op.weight is not None and op.is_slice:
            groups.setdefault(op.weight, []).append(op)
    return [g for g in groups.values() if len(g) > 1]


def _num_slices(flow: Dataflow, op: Found) -> int:
    """How many matrices like the one an op multiplies with its parameter holds, whatever shape it is kept in."""
    assert op.weight is not None
    matrix = next(n for n in op.node.all_input_nodes if flow.parameter(n, through=CUT) is op.weight)
    return prod(shape_of(op.weight)) // prod(shape_of(matrix))


def _numbered(flow: Dataflow, found: list[Found]) -> dict[_Key, list[Found]]:
    groups: dict[_Key, list[Found]] = {}
    for op in found:
        if op.shape == "contraction" and not op.role and not op.is_slice and is_matrix(op):
            key = _pattern(flow, op.weight)  # type: ignore[arg-type]
            if key is not None:
                groups.setdefault(key, []).append(op)
    return {key: g for key, g in groups.items() if len(g) > 1}


def _pattern(flow: Dataflow, weight: fx.Node) -> _Key | None:
    """The name without its last number, and the shape; None without a number."""
    name = flow.name_of(weight)
    numbers = list(_NUMBER.finditer(name))
    if not numbers:
        return None
    at = numbers[-1]
    return name[: at.start()] + "*" + name[at.end() :], shape_of(weight)


def _unused_alike(flow: Dataflow, key: _Key, members: list[Found]) -> list[fx.Node]:
    """Parameters that no node reads, named and shaped like the weights or the biases of ``members``."""
    keys = {key} | {k for op in members if op.bias is not None for k in [_pattern(flow, op.bias)] if k is not None}
    return [p for p in flow.parameters() if not p.users and _pattern(flow, p) in keys]
