"""The rules of ``autoshard check`` as exports ask them: would the engine start with these degrees, and what is noted.

A target without rules of its own (``dtensor``) has none here: what it can run is what its `Target` says.
"""

from dataclasses import dataclass

from autoshard.api.candidates import KEYS
from autoshard.api.verdict import Request, make_request, memory_finding
from autoshard.api.verdict import judge as find_verdict
from autoshard.engines import Judge, MemoryModel, engine_names
from autoshard.export import TARGETS
from autoshard.export.engines.launch import flag_targets, version_of
from autoshard.hardware import Cluster
from autoshard.ir import OpGraph
from autoshard.sharding import Degrees
from autoshard.workload import Workload

SCHEMES = {"bfloat16": "bf16", "float16": "bf16", "float8_e4m3fn": "fp8"}
"""Formats of `autoshard.engines` by the dtype of a workload's weights."""


@dataclass(frozen=True, slots=True)
class EngineRules:
    """An engine's rules and memory for one model, cluster and workload."""

    request: Request
    judge: Judge
    memory: MemoryModel
    settled: frozenset[str]

    def broken(self, d: Degrees) -> tuple[str, ...]:
        """Rules that degrees break."""
        found = self.judge.findings(pp=d.pp, dp=d.dp, tp=d.tp, ep=d.ep, etp=d.etp, replicas=d.replicas)
        return tuple(f.message for f in found if f.effect != "note" and f.rule not in self.settled)

    def unfit(self, d: Degrees) -> tuple[str, ...]:
        """Why weights, workspace and one request do not fit at degrees that break no rule."""
        memory = self.memory.at(**{n: getattr(d, n) for n in KEYS})
        return () if memory.fits else (memory_finding(self.request, memory).message,)

    def notes(self, d: Degrees) -> tuple[str, ...]:
        """What is worth knowing at degrees that start."""
        request = Request(
            launch=self.request.launch,
            context=self.request.context,
            kv_dtype=self.request.kv_dtype,
            fixed={n: getattr(d, n) for n in KEYS},
            batch=d.batch,
        )
        return tuple(f.message for f in find_verdict(request).notes)


def engine_rules(target: str, graph: OpGraph, cluster: Cluster, workload: Workload) -> EngineRules | None:
    """The rules for a target; None for one that is no engine with rules of its own."""
    if target not in engine_names():
        return None
    request = make_request(
        graph,
        cluster,
        engine=target,
        version=version_of(target) if target in flag_targets() else None,
        quant=SCHEMES.get(workload.dtype, "bf16"),
        context=max(workload.cached_tokens_per_sequence, 1),
        kv_dtype=workload.kv_dtype,
    )
    memory = MemoryModel(request.launch, context=request.context, kv_dtype=request.kv_dtype)
    return EngineRules(request, Judge(request.launch), memory, TARGETS[target].settles)
