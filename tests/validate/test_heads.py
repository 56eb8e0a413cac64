"""Fused q|k|v and recurrent mixers by heads, on real ranks: every choice around them, and random strategies."""

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from autoshard.ir import OpGraph
from autoshard.sharding import Degrees, Strategy, strategy_reasons
from autoshard.sharding.patterns import pattern_strategy
from autoshard.tracing import ConfigSource, FactorySource, ModelSource, resolve, trace, trace_source
from autoshard.validate import Case, ModelJob, ValidationReport, default_cases, validate
from tests.tracing.families import FAMILIES
from tests.validate.strategies import random_strategies

TP2 = Degrees(tp=2, etp=2)


def fused(name: str, **sizes: Any) -> ModelSource:
    return FactorySource(name=name, target="tests.validate.fused_gpt:build", kwargs=sizes)


def family(name: str, **sizes: Any) -> ModelSource:
    return resolve({"model_type": name, **FAMILIES[name], **sizes})


_SMALL = {k: v for k, v in FAMILIES["gemma2"].items() if k not in ("sliding_window", "head_dim")}
SOURCES: dict[str, ModelSource] = {
    "gpt": fused("gpt"),
    "gpt-grouped": fused("gpt-grouped", style="grouped", num_kv_heads=2),
    "gpt-across": fused("gpt-across", style="across"),
    "qwen3-next": family("qwen3_next", linear_num_key_heads=4, linear_num_value_heads=8),
    "qwen3.5": family("qwen3_5_moe_text", linear_num_key_heads=4, linear_num_value_heads=8),
    "nemotron-h": family("nemotron_h", n_groups=4),
    "jamba": family("jamba"),
    "phi3": ConfigSource(name="phi3", class_name="Phi3ForCausalLM", config=_SMALL),
    "gpt-neox": ConfigSource(name="gpt-neox", class_name="GPTNeoXForCausalLM", config=_SMALL),
    "falcon": ConfigSource(
        name="falcon",
        class_name="FalconForCausalLM",
        config={**_SMALL, "new_decoder_architecture": True, "num_kv_heads": 4},
    ),
}


def graph_of(name: str) -> OpGraph:
    source = SOURCES[name]
    return trace(source.build(dtype="float32"), name=name) if name.startswith("gpt") else trace_source(source)


def every(graph: OpGraph, base: Strategy, **choices: tuple[int | None, ...]) -> list[Case]:
    """All combinations of the given choices by op name in the first layer kind, the rest as in ``base``."""
    cases = []
    for picked in product(*choices.values()):
        names = {f"{graph.blocks[0].name}/{op}": c for op, c in zip(choices, picked, strict=True)}
        strategy = replace(base, choices=tuple((k, names.get(k, c)) for k, c in base.choices))
        assert not strategy_reasons(graph, strategy), strategy_reasons(graph, strategy)[0].message
        cases.append(Case(name=str(picked), strategy=strategy))
    return cases


def job(name: str, graph: OpGraph, cases: list[Case]) -> ModelJob:
    named = tuple(c.model_copy(update={"name": f"{name}: {c.name}"}) for c in cases)
    return ModelJob(source=SOURCES[name].to_dict(), graph=graph, cases=named, dtypes=("float64",))


def assert_exact(reports: tuple[ValidationReport, ...], num: int) -> None:
    assert len(reports) == num
    failed = [f"{r.name}: {r.difference}" for r in reports if not r.passed]
    assert not failed, "\n".join(failed)
    assert max(r.logits_max_rel_err for r in reports) < 1e-9


ANY, CORE = (0, 1, None), (0, None)


@pytest.mark.wide
def test_every_choice_around_a_fused_projection_on_two_ranks() -> None:
    graph = graph_of("gpt")
    cases = every(graph, pattern_strategy(graph, TP2, "megatron"), qkv=ANY, attention=CORE, o=ANY)
    assert_exact(validate([job("gpt", graph, cases)], nproc=2, timeout_s=200), 18)


@pytest.mark.wide
def test_every_choice_around_unequal_parts_and_mixers_on_two_ranks() -> None:
    jobs = []
    for name, choices in {
        "gpt-grouped": {"qkv": ANY, "attention": CORE, "o": (0, 1)},
        "nemotron-h": {"mixer_in": ANY, "mixer": CORE, "mixer_out": (0, 1)},
        "qwen3-next": {"mixer_in": ANY, "mixer": CORE, "mixer_out": (0, 1)},
    }.items():
        graph = graph_of(name)
        jobs.append(job(name, graph, every(graph, pattern_strategy(graph, TP2, "megatron"), **choices)))
    assert_exact(validate(jobs, nproc=2, timeout_s=200), 12 + 12 + 12)


@pytest.mark.wide
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize("nproc", [2, 4])
def test_patterns_and_random_strategies_on_simulated_ranks(name: str, nproc: int) -> None:
    graph = graph_of(name)
    drawn = [Case(name=f"random {i}", strategy=s) for i, s in enumerate(random_strategies(graph, nproc, 20, 7))]
    work = job(name, graph, [*default_cases(graph, nproc), *drawn])
    assert_exact(validate([work], nproc=nproc, simulated=True, timeout_s=1100), len(work.cases))


@pytest.mark.wide
@pytest.mark.timeout(1200)
def test_megatron_and_random_strategies_of_every_family_on_four_real_ranks() -> None:
    """One launch. What simulated ranks run is the code that these run: a few of each say that it is."""
    jobs = []
    for name in SOURCES:
        graph = graph_of(name)
        drawn = [Case(name=f"random {i}", strategy=s) for i, s in enumerate(random_strategies(graph, 4, 2, 7))]
        jobs.append(job(name, graph, [*(c for c in default_cases(graph, 4) if c.name == "tp/megatron"), *drawn]))
    assert_exact(validate(jobs, nproc=4, timeout_s=1100), sum(len(j.cases) for j in jobs))
