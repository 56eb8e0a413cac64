"""A plan of the wider space is searched, written, read and explained, and refused by whatever would run it."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import MixtralConfig, MixtralForCausalLM

from autoshard import Plan, Workload, autoshard
from autoshard.api.describe import describe_plan
from autoshard.api.explain import explain
from autoshard.api.export import export
from autoshard.api.validation import validate
from autoshard.errors import InvalidInputError

REFUSED = "kv-sequence: layers/attention=1 .* simulated only"


@pytest.fixture(scope="module")
def model() -> torch.nn.Module:
    """Two kv heads, so that four ranks of tp=8 have each."""
    with torch.device("meta"):
        return MixtralForCausalLM(
            MixtralConfig(
                hidden_size=256,
                intermediate_size=512,
                num_hidden_layers=2,
                num_attention_heads=8,
                num_key_value_heads=2,
                num_local_experts=8,
                vocab_size=512,
                max_position_embeddings=10**7,
            )
        )


@pytest.fixture(scope="module")
def plan(model: torch.nn.Module) -> Plan:
    """A context of which a device holds no sequence unless its cache is split."""
    workload = Workload(context=6_000_000)
    return autoshard(model, "H100x8", workload, search="exact", fix="tp=8,dp=1", space="kv-sequence", stages="even")


def test_it_is_written_read_and_explained(plan: Plan, tmp_path: Path) -> None:
    assert dict(plan.strategy.choices)["layers/attention"] == 1
    plan.save(tmp_path / "plan.json")
    again = Plan.load(tmp_path / "plan.json")
    assert again.data == plan.data
    described = describe_plan(again.data)
    assert any("simulated only: kv-sequence" in text for text in described["warnings"])
    assert described["space"]["legal_choices"]["layers/attention"]["legal"] == [0, None, 1]
    found = explain(again.data)
    assert found["choices"]["layers/attention"]["taken"] == 1
    assert found["predicted"]["tokens_per_s_per_gpu"] == pytest.approx(plan.predicted.tokens_per_s_per_gpu)
    exchanged: list[Any] = [e for e in found["collectives"] if e["kind"] == "all_to_all" and e["axis"] == "tp_rep"]
    assert [(e["where"], e["group_size"], e["count"]) for e in exchanged] == [("layers/attention", 4, 2)]


def test_nothing_runs_it(plan: Plan, model: torch.nn.Module) -> None:
    with pytest.raises(InvalidInputError, match=REFUSED):
        plan.apply(model, None)  # type: ignore[arg-type]  # refused before the mesh is looked at
    with pytest.raises(InvalidInputError, match=REFUSED):
        validate(plan)
    for target in ("vllm", "transformers", "dtensor"):
        with pytest.raises(InvalidInputError, match=REFUSED):
            export(plan, target)
