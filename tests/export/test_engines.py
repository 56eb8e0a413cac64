"""Engine exports by their documented rules, on hand-made graphs."""

import json
import re
from importlib import resources

import pytest
import yaml

from autoshard.api.export import export
from autoshard.api.nearest import nearest_strategy
from autoshard.api.solve import make_simulator
from autoshard.errors import InvalidInputError
from autoshard.export import TARGETS, Export
from autoshard.export.engines.megatron import layout_text
from autoshard.hardware import parse_cluster
from autoshard.sharding import Degrees
from autoshard.workload import Workload
from tests.export.conftest import MakePlan
from tests.validate.sources import graph_of

ENGINES = ("vllm", "sglang", "trtllm", "megatron")


def text(found: Export, name: str) -> str:
    return next(f.text for f in found.files if f.name == name)


def made(plan_of_strategy: MakePlan, engine: str, degrees: Degrees, cluster: str = "H100x8", **workload: str) -> Export:
    strategy = TARGETS[engine].strategy(graph_of("mixtral"), degrees)
    assert strategy is not None
    plan = plan_of_strategy(graph_of("mixtral"), strategy, cluster, Workload(**workload))  # type: ignore[arg-type]
    return export(plan, engine).export


def test_vllm_config(plan_of_strategy: MakePlan) -> None:
    found = made(plan_of_strategy, "vllm", Degrees(pp=2, dp=2, tp=2, ep=4, batch=4), kv_dtype="fp8")
    config = yaml.safe_load(text(found, "config.yaml"))
    assert config["tensor-parallel-size"] == 2
    assert config["pipeline-parallel-size"] == 2
    assert config["data-parallel-size"] == 2
    assert config["enable-expert-parallel"] is True
    assert config["kv-cache-dtype"] == "fp8_e4m3"
    assert config["max-model-len"] == 4096
    assert "vllm serve" in text(found, "launch.sh")


def test_vllm_has_no_expert_tensor_parallelism_inside_ep() -> None:
    graph = graph_of("mixtral")
    degrees = Degrees(tp=4, ep=2, etp=2)
    assert TARGETS["vllm"].strategy(graph, degrees) is None
    sglang = TARGETS["sglang"].strategy(graph, degrees)
    assert sglang is not None
    assert TARGETS["vllm"].reasons(graph, sglang) == (
        "ep=2 with etp=2: its experts are split by expert over all dp*tp=4 ranks or none",
    )


def test_sglang_counts_attention_ranks_inside_tp(plan_of_strategy: MakePlan) -> None:
    # dp 4 x tp 2 = 8 ranks of a stage; experts 2 groups of 4.
    found = made(plan_of_strategy, "sglang", Degrees(dp=4, tp=2, ep=2, etp=4, batch=4))
    config = yaml.safe_load(text(found, "config.yaml"))
    assert (config["tp-size"], config["ep-size"]) == (8, 2)
    assert "--dp-size 4 \\\n  --enable-dp-attention" in text(found, "launch.sh")


def test_trtllm_attention_is_data_parallel_over_all_ranks_or_none(plan_of_strategy: MakePlan) -> None:
    assert TARGETS["trtllm"].strategy(graph_of("mixtral"), Degrees(dp=4, tp=2, ep=8, batch=4)) is None
    found = made(plan_of_strategy, "trtllm", Degrees(dp=8, ep=2, etp=4, batch=8))
    options = yaml.safe_load(text(found, "llm_options.yaml"))
    assert options["enable_attention_dp"] is True
    assert (options["moe_expert_parallel_size"], options["moe_tensor_parallel_size"]) == (2, 4)
    assert "--tp_size 8" in text(found, "launch.sh")


def test_megatron_refuses_copied_query_groups_and_writes_uneven_stages() -> None:
    reasons = TARGETS["megatron"].reasons(
        graph_of("mixtral"),
        TARGETS["vllm"].strategy(graph_of("mixtral"), Degrees(tp=8, ep=8)),  # type: ignore[arg-type]
    )
    assert reasons == ("tp=8 does not divide 4 query groups, which it does not copy",)
    assert layout_text((15, 16, 15)) == "Et*15|t*16|t*15L"


def test_an_operator_that_an_engine_does_not_split_is_named() -> None:
    graph = graph_of("mixtral")
    base = TARGETS["vllm"].strategy(graph, Degrees(tp=2, ep=2))
    assert base is not None
    choices = tuple((k, None if k == "layers/o" else c) for k, c in base.choices)
    other = type(base)(degrees=base.degrees, choices=choices)
    assert TARGETS["vllm"].reasons(graph, other) == ("it has no switch per operator: layers/o=none (it runs 1)",)


@pytest.mark.parametrize("engine", ENGINES)
def test_flags_are_on_the_recorded_list(engine: str, plan_of_strategy: MakePlan) -> None:
    data = json.loads(resources.files("autoshard.export.engines").joinpath("flags.json").read_text("utf-8"))
    known = set(data[engine]["flags"])
    assert all(s.startswith("https://") for s in data[engine]["sources"]) and data[engine]["version"]
    shapes = {"trtllm": Degrees(dp=8, ep=8, batch=8), "megatron": Degrees(pp=2, dp=2, tp=2, ep=4, batch=4)}
    for cluster in ("H100x8", "H100x16"):
        degrees = shapes.get(engine, Degrees(dp=4, tp=2, ep=8, batch=4))
        if cluster == "H100x16":
            degrees = Degrees(dp=16 // degrees.tp, tp=degrees.tp, ep=8, etp=2, batch=16 // degrees.tp)
            if engine == "vllm":
                degrees = Degrees(dp=8, tp=2, ep=1, etp=16, batch=8)
        found = made(plan_of_strategy, engine, degrees, cluster)
        used = set()
        for file in found.files:
            used |= set(re.findall(r"--([\w-]+)", file.text))
            if file.name.endswith(".yaml"):
                values = yaml.safe_load(file.text)
                used |= {f"yaml:{k}" if engine == "trtllm" else k for k in values}
        assert used and used <= known, used - known
        assert (cluster == "H100x16") == any("2 nodes" in n for n in found.notes)


def test_a_refusal_names_the_reason_the_nearest_and_its_loss(plan_of_strategy: MakePlan) -> None:
    graph = graph_of("mixtral")
    strategy = TARGETS["sglang"].strategy(graph, Degrees(tp=4, ep=2, etp=2))
    assert strategy is not None
    plan = plan_of_strategy(graph, strategy, "H100x4")
    with pytest.raises(
        InvalidInputError, match=r"vLLM 0.12.0 cannot express this plan: ep=2 with etp=2.* Nearest: pp="
    ):
        export(plan, "vllm")
    found = export(plan, "vllm", nearest=True)
    assert found.nearest and TARGETS["vllm"].reasons(graph, found.plan.strategy) == ()
    # The nearest is the best of what vLLM can express, whatever the plan reaches.
    simulator = make_simulator(graph, parse_cluster("H100x4"), Workload())
    best = nearest_strategy(simulator, "vllm")
    assert best.strategy is not None
    assert found.plan.predicted.tokens_per_s_per_gpu == pytest.approx(best.tokens_per_s_per_gpu)
    assert found.loss == pytest.approx(1 - best.tokens_per_s_per_gpu / plan.predicted.tokens_per_s_per_gpu)
    for degrees in (Degrees(tp=4, ep=4), Degrees(dp=4, etp=4, batch=4), Degrees(tp=2, etp=2)):
        fixed = {n: getattr(degrees, n) for n in ("pp", "dp", "tp", "ep")}
        other = TARGETS["vllm"].strategy(graph, degrees)
        assert other is not None
        narrower = nearest_strategy(make_simulator(graph, parse_cluster("H100x4"), Workload(), fixed=fixed), "vllm")
        assert narrower.tokens_per_s_per_gpu <= best.tokens_per_s_per_gpu * (1 + 1e-12)


def test_unknown_targets_are_refused(plan_of_strategy: MakePlan) -> None:
    graph = graph_of("mixtral")
    strategy = TARGETS["vllm"].strategy(graph, Degrees(tp=2, ep=2))
    assert strategy is not None
    with pytest.raises(InvalidInputError, match="unknown target 'llamacpp': plans are exported to dtensor, transf"):
        export(plan_of_strategy(graph, strategy, "H100x2"), "llamacpp")
