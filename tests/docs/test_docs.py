"""What the documents say is what the code does."""

import runpy
from pathlib import Path

import pytest
from autoshard_models.presets import GPT_MOE_PRESETS

from autoshard import catalogue
from autoshard.tracing import trace_source
from tests.traced import traced

DOCS = Path(__file__).parents[2] / "docs"


MAKE_SPACE = runpy.run_path(str(DOCS / "make_space.py"))
LIVE = ("gpt-moe-7b",)
STORED = ("gpt-oss-20b", "deepseek-v3", "glm-5", "glm-4.5-air", "phi-3.5-moe", "minimax-m2.5", "qwen3-32b")
"""One of each kind: sinks, latent, latent that hands more over, dense layers first, biases, full-width norms, dense."""


def section_of(text: str, name: str) -> list[str]:
    """The lines of a model in the page of spaces."""
    return text.partition(f"\n## {name}\n")[2].partition("\n## ")[0].splitlines()


@pytest.mark.parametrize("name", [*LIVE, *STORED])
def test_the_space_is_as_printed(name: str) -> None:
    """A choice that a rule takes away, or a degree point, shows as a changed line."""
    graph = traced(name) if name in STORED else trace_source(catalogue.find(name))
    found = list(MAKE_SPACE["section"](name, graph))
    assert found[0] == f"## {name}" and not found[-1]
    assert section_of((DOCS / "space.md").read_text(encoding="utf-8"), name) == found[1:-1]


@pytest.mark.wide
@pytest.mark.timeout(1200)
def test_the_space_of_every_model_is_as_printed() -> None:
    assert MAKE_SPACE["page"]() == (DOCS / "space.md").read_text(encoding="utf-8")


def test_the_space_of_every_model_is_printed() -> None:
    text = (DOCS / "space.md").read_text(encoding="utf-8")
    assert [line[3:] for line in text.splitlines() if line.startswith("## ")] == [e.name for e in catalogue.entries()]


def test_the_rules_of_check_are_as_printed() -> None:
    page = runpy.run_path(str(DOCS / "make_check.py"))["page"]
    assert page() == (DOCS / "check.md").read_text(encoding="utf-8")


def test_gpt_moe_sizes_are_as_printed() -> None:
    text = (DOCS / "gpt-moe.md").read_text(encoding="utf-8")
    for name, preset in GPT_MOE_PRESETS.items():
        hidden, layers, heads = (preset.config[n] for n in ("hidden_size", "num_hidden_layers", "num_attention_heads"))
        assert f"| {name} | {hidden:,} | {layers} | {heads} | {preset.num_parameters:,} |" in text


def test_every_model_and_cluster_has_its_exports() -> None:
    text = (DOCS / "exports.md").read_text(encoding="utf-8")
    rows = {
        tuple(c.strip() for c in line.split(" | "))[:2]: line for line in text.splitlines() if line.startswith("| ")
    }
    for entry in catalogue.entries():
        for cluster in ("H100x8", "H100x16", "H100x64"):
            line = rows[f"| {entry.name}", cluster]
            # model, cluster, plan, rate and a cell for each of six targets
            assert line.replace("\\|", "").count("|") == 11, line
