"""Private torch names enter through `autoshard/_torch.py` only."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOOR = ROOT / "autoshard" / "_torch.py"


def _is_private(path: str) -> bool:
    parts = path.split(".")
    return parts[0] == "torch" and any(p.startswith("_") and not p.startswith("__") for p in parts[1:])


def _dotted(node: ast.expr) -> str:
    """`a.b.c` of an attribute chain on a plain name, otherwise ``""``."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (base := _dotted(node.value)):
        return f"{base}.{node.attr}"
    return ""


def private_torch_names(source: str) -> Iterator[str]:
    """Private torch names that ``source`` imports or reads off the module, through aliases too."""
    tree = ast.parse(source)
    alias: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                alias[name.asname or name.name.split(".")[0]] = name.name if name.asname else name.name.split(".")[0]
                if _is_private(name.name):
                    yield name.name
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            for name in node.names:
                full = f"{node.module}.{name.name}"
                alias[name.asname or name.name] = full
                if _is_private(full):
                    yield full
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and (dotted := _dotted(node)):
            head, _, rest = dotted.partition(".")
            full = f"{alias.get(head, '')}.{rest}"
            if _is_private(full):
                yield full


@pytest.mark.parametrize(
    "source",
    [
        "import torch._C",
        "from torch.distributed._functional_collectives import all_reduce",
        "from torch.distributed.tensor import _utils",
        "import torch\ntorch._dynamo.reset()",
        "import torch.distributed as dist\ndist._barrier()",
        "from torch import fx as f\nf._symbolic_trace",
    ],
)
def test_finds_private_names(source: str) -> None:
    assert list(private_torch_names(source))


@pytest.mark.parametrize(
    "source", ["import torch", "from torch.distributed.tensor import Shard", "self._torch._x", "torch.__version__"]
)
def test_lets_public_names_pass(source: str) -> None:
    assert not list(private_torch_names(source))


def test_private_torch_names_enter_by_one_door() -> None:
    found = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in [*(ROOT / "autoshard").rglob("*.py"), *(ROOT / "models").rglob("*.py")]
        if path != DOOR
        for name in private_torch_names(path.read_text())
    }
    assert not found, f"import these through autoshard/_torch.py: {sorted(found)}"
