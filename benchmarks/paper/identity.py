"""What a kept run depends on: the prices of its point, the code and settings of its search, and where it ran.

``cost_model`` is the hash that search states have (`autoshard.search.state.problem_hash`): every price, byte, legal
choice and limit of the point. ``code`` is that of the modules of `autoshard.search` that the search reaches, comments
and docstrings aside, with its settings. A run of which either has changed is run again, and no page shows it.
"""

import ast
import hashlib
import os
import platform
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, lru_cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from autoshard.api.solve import LEARNING, SEARCHES, make_simulator
from autoshard.catalogue import find
from autoshard.errors import AutoshardError
from autoshard.hardware import parse_cluster
from autoshard.ir import OpGraph
from autoshard.search.state import problem_hash
from autoshard.simulator import Simulator
from autoshard.tracing import trace_source
from benchmarks.paper.points import VARIANTS, Point

ROOT = Path(__file__).parents[2]
DIGITS = 12
"""Hexadecimal digits kept of a hash."""
REFUSED = "refused"
"""In place of the hash where nothing fits, so that there is nothing to price."""
STUDIES = "benchmarks.paper.studies"
Lines = Sequence[dict[str, Any]]


@lru_cache(maxsize=1)
def _graph(model: str) -> OpGraph:
    return trace_source(find(model))


def simulator_of(point: Point) -> Simulator:
    """The tables of a point.

    Raises:
        AutoshardError: when nothing fits.
    """
    return make_simulator(_graph(point.model), parse_cluster(point.cluster), point.workload)


def cost_model(point: Point) -> str:
    """The hash of a point's prices today."""
    try:
        return problem_hash(simulator_of(point))[:DIGITS]
    except AutoshardError:
        return REFUSED


def cost_models(points: Iterable[Point], jobs: int = 1) -> dict[str, str]:
    """The hashes of points by name."""
    points = list(points)
    if jobs == 1:
        return {point.name: cost_model(point) for point in points}
    with ProcessPoolExecutor(jobs) as pool:
        return dict(zip((p.name for p in points), pool.map(cost_model, points), strict=True))


@cache
def code(kind: str, name: str) -> str:
    """The hash of the code and settings of a kind of task and a name of it."""
    known: dict[str, Mapping[str, Any]] = {"method": LEARNING, "variant": VARIANTS}
    settings = known.get(kind, {}).get(name, "")
    found = hashlib.sha256(repr(settings).encode())
    for module in sorted(modules_of(kind, name)):
        found.update(f"{module}\n{_bare(module)}\n".encode())
    return found.hexdigest()[:DIGITS]


def modules_of(kind: str, name: str) -> set[str]:
    """The modules whose code decides what such a task finds."""
    start = {"autoshard.search.problem"}
    if kind == "method":
        search: Any = SEARCHES[name]
        start.add((search.func if isinstance(search, partial) else search).__module__)
    elif kind == "variant":
        start.add("autoshard.search.rl")
    else:
        start |= {STUDIES, "autoshard.search.exact", "autoshard.search.megatron"}
    return _reached(start)


def _reached(modules: set[str]) -> set[str]:
    """Modules with those of `autoshard.search` that they import, directly or not."""
    found: set[str] = set()
    while modules:
        module = modules.pop()
        found.add(module)
        names = {n.module for n in ast.walk(_parsed(module)) if isinstance(n, ast.ImportFrom) and n.module}
        modules |= {n for n in names if n.startswith("autoshard.search.")} - found
    return found


@cache
def _parsed(module: str) -> ast.Module:
    return ast.parse((ROOT / Path(*module.split("."))).with_suffix(".py").read_text(encoding="utf-8"))


@cache
def _bare(module: str) -> str:
    """The syntax tree without expressions that are only text, such as docstrings."""
    tree = ast.parse(ast.unparse(_parsed(module)))
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            body[:] = [n for n in body if not (isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant))]
    return ast.dump(tree)


@lru_cache(maxsize=1)
def origin() -> dict[str, str]:
    """Commit, machine and versions of a run."""
    return {"commit": _commit(), "machine": f"{_processor()}, {os.cpu_count()} cores", "versions": _versions()}


def now() -> str:
    """Date and minute, UTC."""
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M")


def _versions() -> str:
    packages = ", ".join(f"{name} {version(name)}" for name in ("autoshard", "numpy", "torch"))
    return f"Python {platform.python_version()}, {packages}"


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def _commit() -> str:
    try:
        head = _git("rev-parse", "--short=10", "HEAD")
        changed = _git("status", "--porcelain", "-uno", "--", "autoshard", "benchmarks", "models")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{head}{' with changes' if changed else ''}"


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    names = [x for x in info.read_text().splitlines() if x.startswith("model name")] if info.exists() else []
    return names[0].partition(":")[2].strip() if names else platform.processor() or platform.machine()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sorted:
    """Lines in force: the last of every task and seed.

    ``unknown`` of them do not say what they depend on; ``stale`` ones depend on what has changed, and are left out.
    """

    kept: list[dict[str, Any]]
    stale: list[dict[str, Any]]
    unknown: int


def key(line: Mapping[str, Any]) -> tuple[str, str, str, int]:
    """Task and seed of a line."""
    return line["point"], line["kind"], line["name"], int(line["seed"])


def sort_out(lines: Lines, costs: Mapping[str, str]) -> Sorted:
    """Lines by whether they hold under today's prices (``costs``, by point) and code."""
    last = {key(line): line for line in lines}
    kept, stale = [], []
    for line in last.values():
        (kept if _holds(line, costs) else stale).append(line)
    unknown = sum("cost_model" not in line for line in kept)
    return Sorted(kept=kept, stale=stale, unknown=unknown)


def _holds(line: Mapping[str, Any], costs: Mapping[str, str]) -> bool:
    if line["kind"] == "variant" and line["name"] not in VARIANTS:
        return False
    if line["kind"] == "method" and line["name"] not in SEARCHES:
        return False
    same = line.get("cost_model", costs.get(line["point"])) == costs.get(line["point"])
    return same and ("code" not in line or line["code"] == code(line["kind"], line["name"]))


def described(lines: Lines) -> Iterator[str]:
    """Where, when and with what lines were run, in words; rows of a list."""
    dates = sorted(line["at"] for line in lines if "at" in line)
    if dates:
        yield f"- Run from {dates[0]} to {dates[-1]} UTC."
    for field, words in (("commit", "Commits"), ("machine", "Machine"), ("versions", "Versions")):
        values = list(dict.fromkeys(line[field] for line in lines if field in line))
        if values:
            yield f"- {words}: {'; '.join(values)}."
    costs = sorted({(line["point"], line["cost_model"]) for line in lines if "cost_model" in line})
    if costs:
        whole = hashlib.sha256(repr(costs).encode()).hexdigest()[:DIGITS]
        yield f"- Hash of the cost model over the points here (all prices, bytes, legal choices and limits): `{whole}`."
