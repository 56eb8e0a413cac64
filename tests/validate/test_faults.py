"""What validation is worth: every way to break a sharded model is noticed, and by the check that should.

On simulated ranks: what breaks is the emitted code, and what notices is the comparison, both the same on real ones.
"""

import math
from dataclasses import replace

import pytest

from autoshard.sharding import Degrees
from autoshard.sharding.patterns import pattern_strategy
from autoshard.validate import Case, ModelJob, ValidationReport, validate
from tests.validate.sources import SOURCES, graph_of

TP = Degrees(tp=4, etp=4)
EP = Degrees(tp=4, ep=4)
# fault -> model, degrees, and which checks must notice (logits, collectives, parameter bytes)
FAULTS = {
    "drop_reduction": ("mixtral", TP, {"logits", "collectives"}),
    "drop_gather": ("mixtral", TP, {"logits", "collectives"}),
    "swap_placement": ("mixtral", TP, {"logits"}),
    "plain_shard": ("mixtral", TP, {"logits"}),
    "other_experts": ("mixtral", EP, {"logits"}),
    "double_bytes": ("mixtral", TP, {"collectives"}),
    "extra_collective": ("mixtral", TP, {"collectives"}),
    "bias_while_partial": ("llama-biases", TP, {"logits"}),
    "other_kv_heads": ("mixtral-2-kv-heads", TP, {"logits"}),
    "divided_groups": ("mixtral-2-kv-heads", TP, {"logits"}),
    "plain_shard_of_qkv": ("fused-gpt", TP, {"logits"}),
    "plain_convolution": ("qwen3-next", TP, {"logits"}),
}
MODELS = tuple(dict.fromkeys(model for model, _, _ in FAULTS.values()))
LOUD = {"swap_placement"}
"""Faults that end in an exception; all others run to the end and are silently wrong."""


@pytest.fixture(scope="module")
def reports() -> dict[str, ValidationReport]:
    jobs = []
    for model in MODELS:
        graph = graph_of(model)
        cases = [Case(name=f"sound {model}", strategy=pattern_strategy(graph, TP, "megatron"))]
        for fault, (of, degrees, _) in FAULTS.items():
            if of == model:
                strategy = pattern_strategy(graph, degrees, "megatron")
                cases.append(
                    Case(name=fault, strategy=strategy, hook=f"tests.validate.faults:{fault.removesuffix('_of_qkv')}")
                )
        jobs.append(ModelJob(source=SOURCES[model].to_dict(), graph=graph, cases=tuple(cases)))
    found = validate(jobs, nproc=4, dtypes=("float32",), timeout_s=120, simulated=True)
    return {r.name: r for r in found}


@pytest.mark.parametrize("model", MODELS)
def test_the_same_strategy_passes_when_nothing_is_broken(reports: dict[str, ValidationReport], model: str) -> None:
    assert reports[f"sound {model}"].passed, reports[f"sound {model}"].difference


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_is_noticed(reports: dict[str, ValidationReport], fault: str) -> None:
    report = reports[fault]
    assert not report.passed
    assert report.difference
    noticed = FAULTS[fault][2]
    if fault not in LOUD:
        assert "raised" not in report.difference
        assert fault == "drop_gather" or math.isfinite(report.logits_max_rel_err)
    assert "AttributeError" not in report.difference, "the fault itself failed"
    if "logits" in noticed:
        assert not report.logits_max_rel_err <= report.tolerance
    else:
        assert report.logits_max_rel_err <= report.tolerance
    if "collectives" in noticed:
        assert not report.collectives_match


def test_a_wrong_prediction_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other side: ranks are right, the list derived for them is not."""
    import autoshard.validate.runner as runner

    expect = runner.expect

    def off_by_one(*args: object, **kwargs: object) -> object:
        found = expect(*args, **kwargs)  # type: ignore[arg-type]
        first = replace(found.traffic[0], num_bytes=found.traffic[0].num_bytes + 4)
        return replace(found, traffic=(first, *found.traffic[1:]), parameter_bytes=found.parameter_bytes - 1)

    monkeypatch.setattr(runner, "expect", off_by_one)
    graph = graph_of("mixtral")
    case = Case(name="sound", strategy=pattern_strategy(graph, TP, "megatron"))
    job = ModelJob(source=SOURCES["mixtral"].to_dict(), graph=graph, cases=(case,))
    (report,) = validate([job], nproc=4, dtypes=("float32",), timeout_s=120, simulated=True)
    assert not report.passed and not report.collectives_match and not report.parameter_bytes_match
    assert report.logits_max_rel_err <= report.tolerance
    assert report.difference is not None and "bytes in the prompt" in report.difference
