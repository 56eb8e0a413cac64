"""What is run: the declared points, methods and variants. A point is a model, a cluster and a workload.

Three sets: ``subset`` fits in 40 minutes on two cores, ``full`` takes a night, ``catalogue`` has every model by name on
two clusters and in two phases (`docs/results/search.md`). All are resumable. Hyperparameters were chosen
on toy problems and on the models of ``TUNED_ON``, about every other one of the catalogue; the rest is held out.
"""

import itertools
from dataclasses import dataclass, field, replace
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
    pinned: dict[str, int | None] = field(default_factory=dict)

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


SUBSET = (
    _point("gpt-moe-7b", "H100x64", decode(16)),
    _point("gpt-moe-60b", "H100x64", decode(16)),
    _point("gpt-moe-350b", "H100x64", decode(16)),
    _point("gpt-moe-1.6t", "H100x512", decode(16)),
    _point("gpt-moe-1.6t", "H100x24576", decode(16)),
    _point("mixtral-8x7b", "H100x64", decode(1)),
    _point("mixtral-8x7b", "H100x64", decode(16, tpot_ms=20)),
    _point("mixtral-8x7b", "H100x64", decode(64)),
    _point("mixtral-8x7b", "H100x64", prefill(8)),
    _point("olmoe-1b-7b", "H100x64", decode(16)),
    _point("gpt-oss-120b", "H100x64", decode(16)),
    _point("deepseek-v3", "H100x512", decode(16)),
)

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
VARIANTS: dict[str, RLConfig] = {
    "as shipped": _RL,
    "no learning (rate 0)": replace(_RL, learning_rate=0.0),
    "no learning, no sweeps (masks and mutations only)": replace(_RL, learning_rate=0.0, sweep_share=0.0),
    "no sweeps": replace(_RL, sweep_share=0.0),
    "no mutations": replace(_RL, mutation_share=0.0),
    "no sweeps, no mutations": replace(_RL, sweep_share=0.0, mutation_share=0.0),
    "no sweeps, mutations, imitation": replace(_RL, sweep_share=0.0, mutation_share=0.0, imitation=0.0),
    "no imitation": replace(_RL, imitation=0.0),
    "no islands": replace(_RL, islands=False),
    "loose masks": replace(_RL, exact_masks=False),
    "factorised head": replace(_RL, factorised=True),
    "history T = 1": replace(_RL, history=1),
    "history T = 10": replace(_RL, history=10),
    "confidence 0.8": replace(_RL, confidence=0.8),
    "chunks 2": replace(_RL, chunks=2),
    "chunks 10": replace(_RL, chunks=10),
    "alpha 0 (improvement only)": replace(_RL, alpha=0.0),
    "beta 0 (throughput only)": replace(_RL, beta=0.0),
    "beta 2": replace(_RL, beta=2.0),
    "paper": PAPER,
    "paper + exact masks": replace(PAPER, exact_masks=True),
    "paper + exact masks + imitation": replace(PAPER, exact_masks=True, imitation=_RL.imitation),
}
"""Ablation and sensitivity: one change each, from the agent as shipped or from the paper's."""

ABLATED = ("gpt-moe-60b / H100x64 / decode 16k", "deepseek-v3 / H100x512 / decode 16k")
"""Points on which every variant runs."""
