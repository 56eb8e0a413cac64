"""Published models as traced once: a graph in milliseconds, where tracing the real class takes 1 to 16 CPU seconds.

``python -m tests.traced`` traces every model again and writes ``data/traced.json.gz``; a wide test does the same and
compares. Models are the catalogue's, or the configs of ``data/models.json``, built from public facts.
"""

import gzip
import json
import sys
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from autoshard.ir import OpGraph

DATA = Path(__file__).parent / "data"
STORED = DATA / "traced.json.gz"
_GRAPH: TypeAdapter[OpGraph] = TypeAdapter(OpGraph)

NAMES = (
    "gpt-oss-20b",
    "gpt-oss-120b",
    "qwen3-30b-a3b",
    "qwen3-235b-a22b",
    "qwen3-next-80b-a3b",
    "qwen3.5-397b-a17b",
    "qwen2-57b-a14b",
    "deepseek-v3",
    "glm-4.5",
    "glm-4.5-air",
    "glm-5",
    "minimax-m2.5",
    "phi-3.5-moe",
    "qwen3-32b",
    "llama-3-8b",
    "llama-3.2-1b",
    "qwen1.5-32b",
    "qwen2-7b",
    "qwen3-coder-480b",
    "deepseek-v4-flash",
    "deepseek-v4-pro",
    "kimi-k3-like",
)


@cache
def configs() -> dict[str, Any]:
    """Configs of models that are not in the catalogue, each with its source."""
    found: dict[str, Any] = json.loads((DATA / "models.json").read_text(encoding="utf-8"))
    return found


@cache
def _stored() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(gzip.decompress(STORED.read_bytes()))
    return found


@cache
def traced(name: str) -> OpGraph:
    """The stored graph of a model."""
    return _GRAPH.validate_python(_stored()[name])


def trace_again(name: str) -> OpGraph:
    """The graph from the model's real class at full size."""
    from autoshard.api.models import graph_of, source_of

    if name not in configs():
        return graph_of(name, source_of(name))
    # A config's graph is called after its folder.
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(configs()[name]["config"]), encoding="utf-8")
        return replace(graph_of(str(path), source_of(str(path))), model_name=name)


def write(graphs: dict[str, OpGraph]) -> None:
    """Store graphs; the same graphs give the same bytes."""
    data = {name: _GRAPH.dump_python(graph, mode="json") for name, graph in graphs.items()}
    text = json.dumps(data, separators=(",", ":"), sort_keys=True)
    STORED.write_bytes(gzip.compress(text.encode(), mtime=0))


if __name__ == "__main__":
    write({name: trace_again(name) for name in (sys.argv[1:] or NAMES)})
