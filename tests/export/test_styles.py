"""Parallel styles of transformers, by hand for a Mixtral."""

import pytest

from autoshard.export import TARGETS
from autoshard.export.transformers_export import distributed_config
from autoshard.sharding import Degrees, Strategy
from autoshard.sharding.patterns import pattern_strategy
from tests.validate.sources import graph_of

AT = "model.layers.*"
TARGET = TARGETS["transformers"]


def test_expert_parallel_mixtral() -> None:
    config = distributed_config(
        graph_of("mixtral"), pattern_strategy(graph_of("mixtral"), Degrees(tp=4, ep=4), "megatron")
    )
    assert (config["tp_size"], config["ep_size"], config["fsdp_size"]) == (4, 4, 1)
    assert config["ep_plan"] == {
        f"{AT}.mlp.experts": "ep_dispatch_experts",
        f"{AT}.mlp.experts.gate_up_proj": "grouped_gemm",
        f"{AT}.mlp.experts.down_proj": "grouped_gemm",
    }
    assert config["tp_plan"] == {
        "model.embed_tokens": "embedding_rowwise",
        f"{AT}.input_layernorm": "replicate",
        f"{AT}.self_attn.q_proj": "colwise",
        f"{AT}.self_attn.k_proj": "colwise",
        f"{AT}.self_attn.v_proj": "colwise",
        f"{AT}.self_attn.o_proj": "rowwise",
        f"{AT}.post_attention_layernorm": "replicate",
        f"{AT}.mlp.gate": "replicate",
        "model.norm": "replicate",
        "lm_head": "colwise_gather_output",
    }


def test_tokens_are_exchanged_where_the_plan_says_so() -> None:
    graph, degrees = graph_of("mixtral"), Degrees(tp=4, ep=4)
    said = {}
    for dispatch in (None, 0):
        strategy = pattern_strategy(graph, degrees, "megatron", dispatch=dispatch)
        assert TARGET.reasons(graph, strategy) == ()
        said[dispatch] = distributed_config(graph, strategy)
    assert (said[None].pop("ep_implementation"), said[0].pop("ep_implementation")) == ("all_reduce", "all_to_all")
    assert said[None] == said[0]


def test_tensor_parallel_experts() -> None:
    strategy = pattern_strategy(graph_of("mixtral"), Degrees(tp=4, etp=4), "megatron")
    config = distributed_config(graph_of("mixtral"), strategy)
    assert config["ep_size"] == 1 and config["ep_plan"] is None
    plan = config["tp_plan"]
    assert isinstance(plan, dict)
    assert plan[f"{AT}.mlp.experts"] == "moe_tp_experts"
    assert plan[f"{AT}.mlp.experts.gate_up_proj"] == "packed_colwise"
    assert plan[f"{AT}.mlp.experts.down_proj"] == "rowwise"


def test_gathered_attention() -> None:
    graph = graph_of("mixtral")
    base = pattern_strategy(graph, Degrees(tp=4, ep=4), "megatron")
    chosen = {**dict(base.choices), "layers/attention": None, "layers/o": 1}
    strategy = Strategy(degrees=base.degrees, choices=tuple(chosen.items()))
    assert TARGET.reasons(graph, strategy) == ()
    plan = distributed_config(graph, strategy)["tp_plan"]
    assert isinstance(plan, dict)
    assert plan[f"{AT}.self_attn.q_proj"] == "colwise_gather_output"
    assert plan[f"{AT}.self_attn.o_proj"] == "rowwise_split_input"


@pytest.mark.parametrize(
    ("degrees", "reason"),
    [
        (Degrees(tp=4, ep=2, etp=2), "ep=2 with etp=2: experts are whole on a rank under expert parallelism"),
        (
            Degrees(dp=2, tp=2, ep=4, batch=2),
            "dp=2: its data parallelism is FSDP, which shards what the plan replicates",
        ),
        (Degrees(pp=2, tp=2, ep=2, batch=2), "pipeline and tensor parallelism do not load together"),
    ],
)
def test_degrees_that_cannot_be_said(degrees: Degrees, reason: str) -> None:
    graph = graph_of("mixtral")
    assert any(reason in r for r in TARGET.reasons(graph, pattern_strategy(graph, degrees, "megatron")))
    assert TARGET.strategy(graph, degrees) is None


def test_layers_that_differ_are_refused() -> None:
    # qwen3-moe here has a dense and a MoE layer: their o projections share a name with a star in it.
    graph = graph_of("qwen3-moe")
    base = pattern_strategy(graph, Degrees(tp=4, ep=4), "megatron")
    first = next(k for k, _ in base.choices if k.endswith("/embed") is False and k.endswith("/q"))
    block = first.partition("/")[0]
    changed = {f"{block}/{n}": None for n in ("q", "k", "v", "attention", "o")}
    strategy = Strategy(degrees=base.degrees, choices=tuple({**dict(base.choices), **changed}.items()))
    assert any(
        r == f"{AT}.self_attn.q_proj is replicate in some layers and colwise in others"
        or r == f"{AT}.self_attn.q_proj is colwise in some layers and replicate in others"
        for r in TARGET.reasons(graph, strategy)
    )


def test_a_model_outside_transformers_is_refused() -> None:
    graph = graph_of("gpt-moe")
    reasons = TARGET.reasons(graph, pattern_strategy(graph, Degrees(tp=2, ep=2), "megatron"))
    assert reasons == (f"{graph.model_class} is not a class of transformers",)


@pytest.mark.wide
def test_a_bias_behind_a_sum_is_refused() -> None:
    from autoshard.api.models import graph_of as trace_model
    from autoshard.api.models import source_of
    from tests.export.checkpoints import build

    model = build("gpt_oss")
    graph = trace_model(model, source_of(model))
    reasons = TARGET.reasons(graph, pattern_strategy(graph, Degrees(tp=4, etp=4), "megatron"))
    assert any("each of the 4 ranks would add model.layers.*.mlp.experts.down_proj_bias once" in r for r in reasons)
    assert TARGET.strategy(graph, Degrees(tp=4, etp=4)) is not None  # with whole experts


@pytest.mark.wide
def test_engines_keep_the_latent_projections_whole() -> None:
    from autoshard.api.models import graph_of as trace_model
    from autoshard.api.models import source_of
    from tests.export.checkpoints import build

    model = build("deepseek_v3")
    graph = trace_model(model, source_of(model))
    strategy = TARGETS["vllm"].strategy(graph, Degrees(tp=4, ep=4))
    assert strategy is not None
    made = {k.partition("/")[2]: strategy.choice(k) for k, _ in strategy.choices if k.startswith("moe_layers/")}
    assert {n: made[n] for n in ("q_a", "kv_a", "q_b", "attention", "o")} == {
        "q_a": None,
        "kv_a": None,
        "q_b": 0,
        "attention": 0,
        "o": 1,
    }
