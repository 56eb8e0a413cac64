"""What an attention mask says: the sliding window, read off the comparison that builds it."""

from collections.abc import Iterable

from torch import fx

from autoshard.tracing.axes import base_name
from autoshard.tracing.dataflow import LAYOUT

_COMPARISONS = frozenset({"gt", "ge", "lt", "le"})


def attention_window(masks: Iterable[fx.Node]) -> int | None:
    """Tokens a query sees under its masks, itself included; None without a window.

    A window is a comparison of one position with another less a constant (``kv > q - window``); chunks are an equality
    of positions divided by a constant, and let a query see at most that many.
    """
    seen: set[fx.Node] = set()
    stack = list(masks)
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        name = base_name(node)
        if name in _COMPARISONS:
            for operand in node.all_input_nodes:
                distance = _subtracted(operand)
                if distance is not None:
                    return distance + (name in ("ge", "le"))
        if name == "eq":
            chunks = {_divided(operand) for operand in node.all_input_nodes}
            if len(chunks) == 1 and None not in chunks:
                return chunks.pop()
        stack.extend(node.all_input_nodes)
    return None


def _divided(node: fx.Node) -> int | None:
    """``c`` if ``node`` is ``x // c`` with an integer constant ``c`` of at least two."""
    while base_name(node) in LAYOUT and node.all_input_nodes:
        node = node.all_input_nodes[0]
    constants = [a for a in node.args if isinstance(a, int) and not isinstance(a, bool)]
    if base_name(node) not in ("floor_divide", "div") or len(constants) != 1:
        return None
    return constants[0] if constants[0] >= 2 else None


def _subtracted(node: fx.Node) -> int | None:
    """``c`` if ``node`` is ``x - c`` (or ``x + -c``) with an integer constant ``c`` of at least one."""
    constants = [a for a in node.args if isinstance(a, int) and not isinstance(a, bool)]
    if base_name(node) not in ("sub", "add") or len(constants) != 1 or len(node.all_input_nodes) != 1:
        return None
    value = constants[0] if base_name(node) == "sub" else -constants[0]
    return value if value >= 1 else None
