"""The runtime of an exported file: the parts whose functions it calls, as one text with the imports that they need.

The parts (`autoshard.export.runtime`) are ordinary modules, checked and tested as such. In a file they stand one after
the other, so imports of one another are left out; what they take from `autoshard._torch` is written into the file as
its own text.
"""

import ast
from collections.abc import Iterator
from importlib import resources
from inspect import getsource

from autoshard import _torch

PARTS = ("moves", "operators", "heads", "experts", "exchange")
"""In the order in which they stand in a file; ``moves`` is always there."""
_OWN = "autoshard"
_ALIAS = {"StridedShard": ("torch.distributed.tensor.placement_types", "_StridedShard")}
"""Names of `autoshard._torch` that are torch's under another name."""


def runtime_source(calls: str) -> tuple[str, str]:
    """(imports, body) of a file whose own text is ``calls``."""
    texts = {
        part: resources.files("autoshard.export.runtime").joinpath(f"{part}.py").read_text("utf-8") for part in PARTS
    }
    trees = {part: ast.parse(text) for part, text in texts.items()}
    kept = _needed(trees, calls)
    bodies, imported = ["# --- what torch keeps to itself"], [node for part in kept for node in _imports(trees[part])]
    for name in dict.fromkeys(alias.name for node in imported for alias in node.names if _is_door(node)):
        if name not in _ALIAS:
            bodies.append(getsource(getattr(_torch, name)).rstrip())
    for part in kept:
        bodies.append(f"# --- {_docstring(trees[part])}\n\n\n{_body(texts[part], trees[part])}")
    body = "\n\n\n".join(bodies)
    return _import_lines(imported, f"{calls}\n{body}"), body


def _needed(trees: dict[str, ast.Module], calls: str) -> list[str]:
    """The parts that define a name which the calls, or a part that is needed, use."""
    used = _names(ast.parse(calls))
    kept = {"moves"}
    for part in reversed(PARTS):
        defined = {n.name for n in trees[part].body if isinstance(n, ast.FunctionDef | ast.ClassDef)}
        if defined & used or part in kept:
            kept.add(part)
            used |= {a.name for n in _imports(trees[part]) if (n.module or "").startswith(_OWN) for a in n.names}
    return [part for part in PARTS if part in kept]


def _names(tree: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}


def _imports(tree: ast.Module) -> Iterator[ast.ImportFrom]:
    """Imports of names; those of modules are turned into the same form (``import x as y`` -> module ``""``)."""
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            yield node
        elif isinstance(node, ast.Import):
            yield ast.ImportFrom(module="", names=node.names, level=0)


def _is_door(node: ast.ImportFrom) -> bool:
    return node.module == f"{_OWN}._torch"


def _docstring(tree: ast.Module) -> str:
    first = (ast.get_docstring(tree) or "").partition("\n")[0]
    return first.rstrip(".")


def _body(text: str, tree: ast.Module) -> str:
    """What follows the imports."""
    last = max(n.end_lineno or 0 for n in tree.body if isinstance(n, ast.Import | ast.ImportFrom))
    return "\n".join(text.splitlines()[last:]).strip()


def _import_lines(nodes: list[ast.ImportFrom], text: str) -> str:
    """Import statements of the names that ``text`` uses, the standard library's first."""
    used = _names(ast.parse(text))
    found: dict[str, set[str]] = {}
    whole: set[str] = set()
    for node in nodes:
        for alias in node.names:
            module, name, called = node.module or "", alias.name, alias.asname or alias.name
            if _is_door(node):
                if name not in _ALIAS:
                    continue
                module, private = _ALIAS[name]
                shown = f"{private} as {name}"
            elif module.startswith(_OWN):
                continue
            else:
                shown = name if name == called else f"{name} as {called}"
            if called.partition(".")[0] not in used:
                continue
            if module:
                found.setdefault(module, set()).add(shown)
            else:
                whole.add(f"import {shown}")
    lines = [*sorted(whole), *(f"from {m} import {', '.join(sorted(names))}" for m, names in sorted(found.items()))]
    ours = [line for line in lines if line.split()[1].partition(".")[0] == "torch"]
    return "\n".join([*(line for line in lines if line not in ours), "", *ours])
