"""What the documents say is what the code does."""

import runpy
from pathlib import Path

import pytest
from autoshard_models.presets import GPT_MOE_PRESETS

from autoshard import catalogue

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("name", ["mixtral-8x7b", "gpt-moe-7b"])
def test_the_space_is_as_printed(name: str) -> None:
    section = runpy.run_path(str(DOCS / "make_space.py"))["section"]
    assert "\n".join(section(name)) in (DOCS / "space.md").read_text(encoding="utf-8")


def test_the_space_of_every_model_is_printed() -> None:
    text = (DOCS / "space.md").read_text(encoding="utf-8")
    assert [f"## {e.name}" in text for e in catalogue.entries()] == [True] * len(catalogue.entries())


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
