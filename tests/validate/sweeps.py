"""Every combination of choices of attention matrices and of the FFN, and random strategies, of a family.

Combinations run on a model with one layer of every kind, random strategies on a deeper one, pipelines included.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

import torch

from autoshard.ir import ExpertsLinear, LatentAttention, Linear, OpGraph
from autoshard.sharding import RESIDUAL, Choice, Degrees, Strategy, mesh_of, strategy_reasons
from autoshard.sharding.legality import axis_sizes, choice_key, option_illegal
from autoshard.sharding.space import free_ops, options
from autoshard.tracing import ConfigSource, FactorySource, ModelSource, resolve, trace_source
from autoshard.validate import Case, ModelJob, ValidationReport, validate
from tests.tracing.families import FAMILIES
from tests.validate.sources import SOURCES
from tests.validate.strategies import drawn_strategies

CHOICES: tuple[Choice, ...] = (0, 1, None)
SWEPT = {
    "mixtral": 729,
    "qwen3-moe": 729,
    "olmoe": 729,
    "gpt_oss": 729,
    "deepseek_v3": 486,
    "qwen3_next": 729,
    "gpt-moe": 729,
    "fused-gpt": 81,
    "phi3": 81,
    "gpt-neox": 81,
    "falcon": 81,
    "llama-biases": 729,
    "llama-tied": 729,
    "qwen2_moe": 729,
    "phimoe": 729,
    "granitemoe": 729,
    "minimax_m2": 729,
    "glm4_moe": 729,
    "hunyuan_v1_moe": 729,
    "gemma2": 729,
    "deepseek_v2": 486,
    "glm_moe_dsa": 486,
    "nemotron_h": 729,
    "jamba": 729,
}
"""Families of which all combinations run, and how many these are: 3^4 x 3^2; a latent attention has 3 x 3 x 2 x 3 (its
kv_b goes with the core: by heads or whole), one fused projection 3 x 3."""
_ONE_OF_EACH: dict[str, dict[str, object]] = {
    "gpt_oss": {"num_hidden_layers": 2},
    "deepseek_v3": {"num_hidden_layers": 2, "qk_nope_head_dim": 16},
    "deepseek_v2": {"num_hidden_layers": 2, "qk_nope_head_dim": 16},
    "glm_moe_dsa": {"num_hidden_layers": 2, "qk_nope_head_dim": 16},
    "glm4_moe": {"num_hidden_layers": 2},
    "gemma2": {"num_hidden_layers": 2},
    "jamba": {"num_hidden_layers": 2},
    "nemotron_h": {"num_hidden_layers": 3},
    "qwen3_next": {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]},
    "qwen3-moe": {"num_hidden_layers": 1, "mlp_only_layers": []},
    "fused-gpt": {"num_layers": 1},
}


def swept_source(name: str) -> ModelSource:
    """The model whose combinations run: one layer of every kind."""
    changed = _ONE_OF_EACH.get(name, {"num_hidden_layers": 1})
    if name not in SOURCES:
        return resolve({"model_type": name, **FAMILIES[name], **changed})
    source = SOURCES[name]
    if isinstance(source, FactorySource):
        return replace(source, kwargs={**source.kwargs, **changed})
    assert isinstance(source, ConfigSource)
    return replace(source, config={**source.config, **changed})


def deep_source(name: str) -> ModelSource:
    """The model that random strategies run on: layers enough for two stages."""
    return SOURCES[name] if name in SOURCES else resolve({"model_type": name, **FAMILIES[name]})


def axes_of_sweep(graph: OpGraph) -> dict[str, list[str]]:
    """What is chosen together: each attention matrix by name in all blocks, and the FFN's in and out.

    The two projections that a latent attention makes of the hidden state are one axis, its core (with the matrix that
    expands the latent) is another. A recurrent mixer's projections
    are none: their choices are drawn.
    """
    found: dict[str, list[str]] = {}
    for block in graph.components():
        for op in free_ops(block) if block in graph.blocks else ():
            key, name = choice_key(graph, block, op), op.name.rstrip("_0123456789")
            if isinstance(op, ExpertsLinear) or (isinstance(op, Linear) and name in _FFN):
                out = op.stage == "down" if isinstance(op, ExpertsLinear) else name == "down"
                found.setdefault("ffn_out" if out else "ffn_in", []).append(key)
            elif isinstance(op, LatentAttention):
                found.setdefault("core", []).append(key)
            elif isinstance(op, Linear) and name in _ATTENTION:
                found.setdefault({"q_a": "a", "kv_a": "a"}.get(name, name), []).append(key)
    return found


_FFN = frozenset({"gate", "up", "down"})
_ATTENTION = frozenset({"q", "k", "v", "qkv", "o", "q_a", "q_b", "kv_a"})


def sweep(graph: OpGraph, tp: int) -> Iterator[tuple[str, Strategy]]:
    """All combinations of what is offered, each with its name; what is not swept is drawn, the number its seed.

    A combination that is offered for some matrices of an axis only takes "replicated" for the others.
    """
    degrees = Degrees(tp=tp, etp=tp)
    sizes = axis_sizes(mesh_of(graph, degrees))
    axes = axes_of_sweep(graph)
    replicated = Strategy(degrees=degrees, choices=())
    legal: dict[str, list[Choice]] = {}
    for block in graph.components():
        for op in free_ops(block):
            offered = [
                o.choice for o in options(block, op) if option_illegal(o, sizes, replicated.residual, op) is None
            ]
            legal[choice_key(graph, block, op)] = sorted(dict.fromkeys(offered), key=str)
    swept = {key for keys in axes.values() for key in keys}
    axis_choices = [[c for c in CHOICES if any(c in legal[k] for k in keys)] for keys in axes.values()]
    for number, combination in enumerate(product(*axis_choices)):
        rng = random.Random(number)
        chosen: dict[str, Choice] = {RESIDUAL: None}
        for keys, choice in zip(axes.values(), combination, strict=True):
            chosen |= {key: choice if choice in legal[key] else None for key in keys}
        for key, offered in legal.items():
            if key not in swept:
                inside = key.endswith(("attention", "act"))
                chosen[key] = (0 if 0 in offered else None) if inside else rng.choice(offered)
        strategy = Strategy(degrees=degrees, choices=tuple(chosen.items()))
        assert not strategy_reasons(graph, strategy)
        name = " ".join(f"{axis}={'-' if c is None else c}" for axis, c in zip(axes, combination, strict=True))
        yield f"{name}, no {number}", strategy


@dataclass(frozen=True, slots=True)
class Outcome:
    """What some strategies of one family came to."""

    name: str
    nproc: int
    seed: int | None
    reports: tuple[ValidationReport, ...]

    @property
    def failed(self) -> list[str]:
        """What differs, a line each."""
        return [f"{r.name} {r.degrees}: {r.difference}" for r in self.reports if not r.passed]

    @property
    def worst(self) -> float:
        """The largest max|a-b| / max|b| of logits."""
        return max(r.logits_max_rel_err for r in self.reports)

    def __str__(self) -> str:
        seed = "" if self.seed is None else f", seed {self.seed}"
        return (
            f"{self.name}: {len(self.reports)} strategies on {self.nproc} ranks{seed}, {len(self.failed)} differ,"
            f" worst error {self.worst:.1e}"
        )


def run_combinations(name: str, stride: slice = slice(None)) -> Outcome:
    """All combinations of a family (or some of them) on two simulated ranks, in float64."""
    source = swept_source(name)
    graph = trace_source(source)
    cases = [Case(name=n, strategy=s) for n, s in sweep(graph, 2)]
    assert len(cases) == SWEPT[name], f"{name} has {len(cases)} combinations"
    (found,) = _run([name], [_job(source, graph, cases[stride], 2)], 2, None, simulated=True)
    return found


def run_random(name: str, count: int, seed: int, *, simulated: bool) -> Outcome:
    """Strategies of a family that hypothesis draws, on four ranks, at all degrees, stages included, in float64."""
    (found,) = run_random_of([name], count, seed, simulated=simulated)
    return found


def run_random_of(names: Sequence[str], count: int, seed: int, *, simulated: bool) -> list[Outcome]:
    """`run_random` of several families in one launch: real ranks take longer to start than to run them."""
    jobs = []
    for name in names:
        source = deep_source(name)
        graph = trace_source(source)
        drawn = drawn_strategies(graph, 4, count, seed, stages=(1, 2))
        cases = [Case(name=f"random, seed {seed}, no {i}", strategy=s) for i, s in enumerate(drawn)]
        jobs.append(_job(source, graph, cases, 4))
    return _run(names, jobs, 4, seed, simulated=simulated)


def _job(source: ModelSource, graph: OpGraph, cases: Sequence[Case], nproc: int) -> ModelJob:
    return ModelJob(
        source=source.to_dict(),
        graph=graph,
        cases=tuple(cases),
        dtypes=("float64",),
        sequences=nproc,
        lengths=(6, 1),
    )


def _run(
    names: Sequence[str], jobs: Sequence[ModelJob], nproc: int, seed: int | None, *, simulated: bool
) -> list[Outcome]:
    torch.set_num_threads(1)  # tensors are tiny, and ranks that are threads take turns anyway
    reports = list(validate(jobs, nproc=nproc, simulated=simulated, timeout_s=3000))
    return [
        Outcome(name, nproc, seed, tuple(reports.pop(0) for _ in job.cases))
        for name, job in zip(names, jobs, strict=True)
    ]
