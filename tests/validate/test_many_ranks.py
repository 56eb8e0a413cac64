"""What is built to prove a plan on as many simulated ranks as it has."""

from pathlib import Path

from autoshard import catalogue
from autoshard.api.validation import _reduced_job
from autoshard.sharding import Degrees
from autoshard.sharding.patterns import pattern_strategy
from autoshard.tracing import source_from_dict, trace_source


def test_a_model_for_64_ranks_divides_by_the_degrees_of_its_plan_only(tmp_path: Path) -> None:
    """A unit of 64 in every dim was 128 experts of 3 x 2048 x 1024: 6.4 GB a layer in float64, twice over."""
    source = catalogue.find("mixtral-8x7b")
    graph = trace_source(source)
    degrees = Degrees(dp=8, tp=8, ep=8, etp=8, batch=8)
    strategy = pattern_strategy(graph, degrees, "megatron")
    job = _reduced_job(source, graph, strategy, 64, "plan", tmp_path, lambda _: None)
    (case,) = job.cases
    assert case.strategy.degrees == degrees and not case.notes
    # tp = etp = 8: 16 heads of 16 for 8 kv heads, 256 wide; ep = 8: 16 experts of 24 x 8
    config = source_from_dict(job.source).config  # type: ignore[attr-defined]
    assert (config["num_attention_heads"], config["num_key_value_heads"], config["hidden_size"]) == (16, 8, 256)
    assert (config["num_local_experts"], config["intermediate_size"]) == (16, 192)
    experts = 16 * 3 * 192 * 256
    assert 2 * experts < job.graph.num_parameters < 2.4 * experts
    # Two layers hold one of every kind; eight stages have a layer each.
    deep = pattern_strategy(graph, Degrees(pp=8, tp=8, etp=8, batch=8), "megatron")
    job = _reduced_job(source, graph, deep, 64, "plan", tmp_path, lambda _: None)
    assert job.cases[0].strategy.degrees == deep.degrees and len(job.graph.layers) == 8
