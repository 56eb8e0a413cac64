"""Small arithmetic expressions, as the rules of engine files use them: data, not code.

An expression may use names of facts, numbers, texts, tuples, comparisons, ``and or not``, ``a if c else b``, the
operators ``+ - * // / %``, and the functions ``min max ceil round_up``. Anything else is refused when the file is read.
"""

import ast
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

from autoshard.errors import InvalidInputError

_NODES = (
    ast.Expression,
    ast.BoolOp,
    ast.And,
    ast.Or,
    ast.UnaryOp,
    ast.Not,
    ast.USub,
    ast.BinOp,
    ast.Add,
    ast.Sub,
    ast.Mult,
    ast.Div,
    ast.FloorDiv,
    ast.Mod,
    ast.Compare,
    ast.Eq,
    ast.NotEq,
    ast.Lt,
    ast.LtE,
    ast.Gt,
    ast.GtE,
    ast.In,
    ast.NotIn,
    ast.IfExp,
    ast.Call,
    ast.Name,
    ast.Load,
    ast.Constant,
    ast.Tuple,
)


def round_up(n: float, multiple: float) -> float:
    """The least multiple of ``multiple`` that is at least ``n``."""
    return math.ceil(n / multiple) * multiple


FUNCTIONS: Mapping[str, Any] = {"min": min, "max": max, "ceil": math.ceil, "round_up": round_up}


@dataclass(frozen=True, slots=True)
class Expression:
    """A checked expression.

    Raises:
        InvalidInputError: on creation, for anything but the arithmetic above.
    """

    text: str
    code: CodeType = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        try:
            tree = ast.parse(self.text.strip(), mode="eval")
        except SyntaxError as error:
            raise InvalidInputError(f"cannot read the expression {self.text!r}: {error.msg}") from None
        for node in ast.walk(tree):
            called = isinstance(node, ast.Call) and not (isinstance(node.func, ast.Name) and node.func.id in FUNCTIONS)
            if not isinstance(node, _NODES) or called or (isinstance(node, ast.Call) and node.keywords):
                raise InvalidInputError(f"the expression {self.text!r} holds {type(node).__name__}: not allowed")
        object.__setattr__(self, "code", compile(tree, f"<{self.text}>", "eval"))

    def names(self) -> frozenset[str]:
        """Names of the facts it reads."""
        return frozenset(self.code.co_names) - frozenset(FUNCTIONS)

    def value(self, facts: Mapping[str, Any]) -> Any:
        """Its value under facts. Raises KeyError for a fact that is not given."""
        missing = self.names() - facts.keys()
        if missing:
            raise KeyError(f"{self.text!r} reads {sorted(missing)}, which no fact gives")
        return eval(self.code, {"__builtins__": {}, **FUNCTIONS}, dict(facts))
