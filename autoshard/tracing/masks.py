"""What an attention mask says: the sliding window, read off the comparison that builds it."""

from torch import fx

from autoshard.tracing.axes import argument, base_name

_COMPARISONS = frozenset({"gt", "ge", "lt", "le"})


def attention_window(attention: fx.Node) -> int | None:
    """Tokens a query sees under the mask of an attention node, itself included; None without a window.

    A window is a comparison of one position with another less a constant (``kv > q - window``).
    """
    mask = argument(attention, 3, "attn_mask")
    if not isinstance(mask, fx.Node):
        return None
    seen: set[fx.Node] = set()
    stack = [mask]
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        if base_name(node) in _COMPARISONS:
            for operand in node.all_input_nodes:
                distance = _subtracted(operand)
                if distance is not None:
                    return distance + (base_name(node) in ("ge", "le"))
        stack.extend(node.all_input_nodes)
    return None


def _subtracted(node: fx.Node) -> int | None:
    """``c`` if ``node`` is ``x - c`` (or ``x + -c``) with an integer constant ``c`` of at least one."""
    constants = [a for a in node.args if isinstance(a, int) and not isinstance(a, bool)]
    if base_name(node) not in ("sub", "add") or len(constants) != 1 or len(node.all_input_nodes) != 1:
        return None
    value = constants[0] if base_name(node) == "sub" else -constants[0]
    return value if value >= 1 else None
