"""The words of an exported DTensor file: moves, calls and names as Python source, wrapped to a readable width."""

from collections.abc import Iterable, Mapping

from autoshard.export.reading import Reading
from autoshard.ir import Block
from autoshard.sharding import Step

WIDTH = 116


def at_layer(block: Block, name: str) -> str:
    """A name of the first instance of a block as the name in any: ``{at}.self_attn.q_proj``."""
    first = block.instances[0]
    if first and (name == first or name.startswith(first + ".")):
        return "{at}" + name[len(first) :]
    return name


def quoted(name: str) -> str:
    """A name as a string literal, an f-string if the layer is in it."""
    return f'f"{name}"' if "{at}" in name else f'"{name}"'


def moves(reading: Reading, steps: tuple[Step, ...]) -> str:
    """Live steps as a list of moves."""
    found = []
    for s in reading.live(steps):
        more = ["dim=0"] if s.dim == "token" else []
        more += [f"packed={s.packed}"] if s.packed > 1 else []
        more += [f"parts={s.parts}"] if s.parts else []
        found.append(f"Move({', '.join([repr_(s.kind), repr_(s.axis), *more])})")
    return f"[{', '.join(found)}]"


def repr_(text: str) -> str:
    """A string literal in double quotes."""
    return f'"{text}"'


def names_(names: Iterable[str]) -> str:
    """A tuple of string literals."""
    found = [repr_(n) for n in names]
    return f"({', '.join(found)}{',' if len(found) == 1 else ''})"


def call(function: str, positional: Iterable[str], named: Mapping[str, str | None], indent: int = 4) -> str:
    """A call as source; arguments that are None, ``[]`` or ``False`` are left to their defaults."""
    given = [*positional, *(f"{k}={v}" for k, v in named.items() if v not in (None, "[]", "False"))]
    pad = " " * indent
    line = f"{pad}{function}({', '.join(given)})"
    if len(line) <= WIDTH:
        return line
    return "\n".join([f"{pad}{function}(", *(f"{pad}    {argument}," for argument in given), f"{pad})"])


def instances(block: Block) -> str:
    """The places of a block as an expression: a range of layers where they are one."""
    names = block.instances
    heads = {n.rpartition(".")[0] for n in names}
    tails = [n.rpartition(".")[2] for n in names]
    if len(names) < 2 or len(heads) != 1 or not all(t.isdigit() for t in tails):
        return "[" + ", ".join(repr_(n) for n in names) + "]"
    numbers = [int(t) for t in tails]
    (head,) = heads
    step = numbers[1] - numbers[0]
    if numbers == list(range(numbers[0], numbers[-1] + 1, step)):
        span = f"range({numbers[0]}, {numbers[-1] + 1}" + (f", {step})" if step > 1 else ")")
    else:
        span = repr(tuple(numbers))
    return f'[f"{head}.{{i}}" for i in {span}]'
