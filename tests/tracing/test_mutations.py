"""Mutated configs: a right result or one line about what is wrong; never a traceback from inside, never a hang."""

import copy
import random

import pytest

from autoshard.errors import AutoshardError
from autoshard.tracing import resolve, trace_source
from tests.tracing.families import FAMILIES

MUTANTS_PER_FAMILY = 25
VALUES = [0, -1, 1, 3, 7, 10**7, "8", "many", None, 2.5, True, [], {}, [1, 2]]


def _mutant(config, rng):
    changed = copy.deepcopy(config)
    for key in rng.sample(sorted(changed), rng.choice([1, 1, 2])):
        if rng.random() < 0.25:
            del changed[key]
        else:
            changed[key] = rng.choice(VALUES)
    return changed


@pytest.mark.parametrize(
    "name",
    ["deepseek_v3", "glm_moe_dsa", "gpt_oss", "qwen3_next", "nemotron_h", "jamba", "llama4_text", "phimoe"],
)
def test_a_mutated_config_builds_or_is_one_line(name):
    rng = random.Random(f"autoshard {name}")
    for _ in range(MUTANTS_PER_FAMILY):
        config = _mutant({"model_type": name, **FAMILIES[name]}, rng)
        try:
            model = resolve(config).build()
        except AutoshardError as error:
            assert "\n" not in str(error), config
        else:
            assert sum(p.numel() for p in model.parameters()) > 0


@pytest.mark.wide
@pytest.mark.parametrize("name", ["deepseek_v3", "gpt_oss", "llama4_text", "phimoe"])
def test_what_builds_traces_or_is_one_line(name):
    rng = random.Random(f"trace {name}")
    for _ in range(MUTANTS_PER_FAMILY):
        source = None
        try:
            source = resolve(_mutant({"model_type": name, **FAMILIES[name]}, rng))
            held = sum(p.numel() for p in source.build().parameters())
            graph = trace_source(source)
        except AutoshardError as error:
            assert "\n" not in str(error), source
        else:
            assert graph.num_parameters == held, source
