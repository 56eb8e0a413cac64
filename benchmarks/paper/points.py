"""What is run: the declared points, methods and variants. A point is a model, a cluster and a workload.

Three sets: ``subset`` fits in 40 minutes on two cores, ``full`` takes a night, ``catalogue`` has every model by name on
two clusters and in two phases (`docs/results/search.md`). All are resumable. Hyperparameters were chosen
on toy problems and on the models of ``TUNED_ON``, about every other one of the catalogue; the rest is held out.
"""

import itertools
from dataclasses import dataclass, replace
from typing import Any

from autoshard.catalogue import entries
from autoshard.search.rl import PAPER, RLConfig
from autoshard.workload import Workload

TUNED_ON = (
    "mixtral-8x7b",
    "qwen3-235b-a22b",
    "qwen3-coder-480b",
    "qwen3-32b",
    "llama-3.1-70b",
    "deepseek-v3.2",
    "glm-5",
    "gpt-oss-120b",
    "llama-4-maverick",
    "glm-4.5",
    "phi-3.5-moe",
    "qwen3-next-80b-a3b",
    "qwen3.5-397b-a17b",
    "jamba-v0.1",
    "gpt-moe-60b",
    "gpt-moe-1.6t",
)
METHODS = ("rl", "rl-paper", "megatron", "anneal", "mcmc", "evolution", "random")
BUDGET = 4000


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A problem to search. ``name`` is unique."""

    model: str
    cluster: str
    workload: Workload
    label: str

    @property
    def name(self) -> str:
        """``mixtral-8x7b / H100x64 / decode 16k``."""
        return f"{self.model} / {self.cluster} / {self.label}"

    @property
    def tuned(self) -> bool:
        """Whether hyperparameters were chosen with this model in view."""
        return self.model in TUNED_ON


def decode(context: int, **limits: Any) -> tuple[Workload, str]:
    """Decode at a context of so many thousand tokens."""
    slo = f", TPOT <= {limits['tpot_ms']} ms" if "tpot_ms" in limits else ""
    return Workload(phase="decode", context=context * 1024, **limits), f"decode {context}k{slo}"


def prefill(isl: int) -> tuple[Workload, str]:
    """Prefill of prompts of so many thousand tokens."""
    return Workload(phase="prefill", context=isl * 1024, isl=isl * 1024), f"prefill {isl}k"


def _point(model: str, cluster: str, what: tuple[Workload, str]) -> Point:
    return Point(model=model, cluster=cluster, workload=what[0], label=what[1])


SERIES: dict[str, tuple[Point, ...]] = {
    "size, decode 16k on H100x64": (
        _point("gpt-moe-7b", "H100x64", decode(16)),
        _point("gpt-moe-60b", "H100x64", decode(16)),
        _point("gpt-moe-350b", "H100x64", decode(16)),
        _point("deepseek-v3", "H100x64", decode(16)),
        _point("gpt-moe-1.6t", "H100x64", decode(16)),
    ),
    "cluster, gpt-moe-1.6t, decode 16k": (
        _point("gpt-moe-1.6t", "H100x64", decode(16)),
        _point("gpt-moe-1.6t", "H100x512", decode(16)),
        _point("gpt-moe-1.6t", "H100x4096", decode(16)),
        _point("gpt-moe-1.6t", "H100x24576", decode(16)),
    ),
    "context and phase, glm-4.5-air on H100x64": (
        _point("glm-4.5-air", "H100x64", decode(1)),
        _point("glm-4.5-air", "H100x64", decode(16)),
        _point("glm-4.5-air", "H100x64", decode(64)),
        _point("glm-4.5-air", "H100x64", prefill(8)),
    ),
    "limit on TPOT, decode 16k": (
        _point("mixtral-8x7b", "H100x64", decode(16)),
        _point("mixtral-8x7b", "H100x64", decode(16, tpot_ms=20)),
        _point("gpt-moe-1.6t", "H100x512", decode(16)),
        _point("gpt-moe-1.6t", "H100x512", decode(16, tpot_ms=50)),
    ),
    "attention, decode 16k on H100x64": (
        _point("llama-3.1-70b", "H100x64", decode(16)),
        _point("qwen3-235b-a22b", "H100x64", decode(16)),
        _point("deepseek-v3", "H100x64", decode(16)),
        _point("gpt-oss-120b", "H100x64", decode(16)),
        _point("qwen3-next-80b-a3b", "H100x64", decode(16)),
        _point("nemotron-3-nano", "H100x64", decode(16)),
    ),
}
"""What varies, and its points: of a series only that differs (in "limit" by pairs; in "attention" the model: dense,
grouped queries, latent, sliding windows, linear attention, state space). Sized so that `make paper` ends in 40 minutes
on two idle cores."""

SUBSET = tuple({point.name: point for points in SERIES.values() for point in points}.values())
SIZES = next(iter(SERIES))
"""The series that compares model sizes, as the paper's third figure does."""

FULL = tuple(
    _point(model, cluster, what)
    for model in (
        "gpt-moe-7b",
        "gpt-moe-60b",
        "gpt-moe-350b",
        "gpt-moe-1.6t",
        "mixtral-8x7b",
        "qwen3-235b-a22b",
        "gpt-oss-120b",
        "deepseek-v3",
    )
    for cluster in ("H100x64", "H100x512", "H100x4096", "H100x24576")
    for what in (decode(1), decode(16), decode(64), decode(16, tpot_ms=50), prefill(8))
)

CATALOGUE = tuple(
    _point(entry.name, cluster, what)
    for cluster, what in itertools.product(("H100x64", "H100x512"), (decode(16), prefill(8)))
    for entry in entries()
)
SETS = {"subset": SUBSET, "full": FULL, "catalogue": CATALOGUE}

_RL = RLConfig()
_ALONE = replace(_RL, sweep_share=0.0, mutation_share=0.0)
_VARIED: dict[str, dict[str, Any]] = {
    "T = 1": {"history": 1},
    "T = 10": {"history": 10},
    "tau = 0.8": {"confidence": 0.8},
    "tau = 0.99": {"confidence": 0.99},
    "chunks 2": {"chunks": 2},
    "chunks 10": {"chunks": 10},
    "alpha = 0 (improvement only)": {"alpha": 0.0},
    "beta = 0 (throughput only)": {"beta": 0.0},
    "beta = 2": {"beta": 2.0},
}
"""The paper's hyperparameters, one changed at a time."""
_PARTS: dict[str, dict[str, Any]] = {
    "no learning (rate 0)": {"learning_rate": 0.0},
    "no imitation": {"imitation": 0.0},
    "no islands": {"islands": False},
    "loose masks": {"exact_masks": False},
    "factorised head": {"factorised": True},
}
"""Parts of the agent, one taken away at a time."""


def _family(base: RLConfig, *changes: dict[str, dict[str, Any]]) -> dict[str, RLConfig]:
    """An agent and what becomes of it with one change each."""
    return {"unchanged": base} | {n: replace(base, **c) for each in changes for n, c in each.items()}


FAMILIES: dict[str, dict[str, RLConfig]] = {
    "rl": _family(_RL, {"no sweeps": {"sweep_share": 0.0}, "no mutations": {"mutation_share": 0.0}}, _PARTS, _VARIED),
    "policy alone": _family(_ALONE, _PARTS, _VARIED),
    "rl-paper": _family(
        PAPER,
        {
            "exact masks": {"exact_masks": True},
            "exact masks, imitation": {"exact_masks": True, "imitation": _RL.imitation},
        },
        _VARIED,
    ),
}
"""Ablation and sensitivity: one change each, of `rl` as shipped, of its policy alone (no sweeps, no mutations, where a
change of the learning is not hidden by what comes after it), and of the paper's agent."""

VARIANTS = {f"{family}: {name}": config for family, each in FAMILIES.items() for name, config in each.items()}

ABLATED = ("glm-4.5-air / H100x64 / decode 16k", "gpt-moe-1.6t / H100x512 / decode 16k")
"""Points on which every variant runs: one held out, where searches find it hardest, and one of the paper's size."""
