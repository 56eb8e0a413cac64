"""Widths that no degree divides: padded as the plan says, equal to the unsharded model, sent and held as listed."""

from dataclasses import replace

import pytest

from autoshard.ir import OpGraph
from autoshard.sharding import DISPATCH, Degrees, Strategy, collectives, paddings, strategy_reasons
from autoshard.sharding.patterns import PATTERNS, pattern_strategy
from autoshard.tracing import ConfigSource, ModelSource, trace
from autoshard.validate import Case, ModelJob, ValidationReport, validate
from tests.validate.strategies import random_strategies

_COMMON = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
    "head_dim": 16,
    "num_experts_per_tok": 2,
}
_KINDS = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8}
SOURCES: dict[str, ModelSource] = {
    s.name: s
    for s in (
        # 7 experts over 4 ranks are 2, 2, 2, 1; 2 kv heads with 3 query heads each: 2 ranks share 3 heads, so 2 each.
        ConfigSource(
            name="mixtral",
            class_name="MixtralForCausalLM",
            config={
                **_COMMON,
                "vocab_size": 250,
                "num_attention_heads": 6,
                "num_key_value_heads": 2,
                "num_local_experts": 7,
                "intermediate_size": 90,
            },
        ),
        # 7 kv heads with 2 query heads each: 4 ranks have 2 kv heads, the last one.
        ConfigSource(
            name="gpt-oss",
            class_name="GptOssForCausalLM",
            config={
                **_COMMON,
                **_KINDS,
                "vocab_size": 253,
                "num_attention_heads": 14,
                "num_key_value_heads": 7,
                "num_local_experts": 7,
                "intermediate_size": 90,
            },
        ),
        ConfigSource(
            name="qwen3-moe",
            class_name="Qwen3MoeForCausalLM",
            config={
                **_COMMON,
                "tie_word_embeddings": True,
                "vocab_size": 250,
                "num_attention_heads": 14,
                "num_key_value_heads": 7,
                "num_experts": 7,
                "moe_intermediate_size": 45,
                "intermediate_size": 90,
                "mlp_only_layers": [0],
            },
        ),
        ConfigSource(
            name="deepseek-v3",
            class_name="DeepseekV3ForCausalLM",
            config={
                "vocab_size": 250,
                "hidden_size": 64,
                "num_hidden_layers": 2,
                "first_k_dense_replace": 1,
                "num_attention_heads": 7,
                "num_key_value_heads": 7,
                "q_lora_rank": 24,
                "kv_lora_rank": 16,
                "qk_rope_head_dim": 8,
                "qk_nope_head_dim": 16,
                "v_head_dim": 16,
                "n_routed_experts": 7,
                "n_group": 1,
                "topk_group": 1,
                "num_experts_per_tok": 2,
                "moe_intermediate_size": 40,
                "intermediate_size": 90,
                "max_position_embeddings": 128,
            },
        ),
    )
}


def run(name: str, cases: list[Case], graph: OpGraph) -> tuple[ValidationReport, ...]:
    job = ModelJob(source=SOURCES[name].to_dict(), graph=graph, cases=tuple(cases))
    return validate([job], nproc=4, dtypes=("float64",), simulated=True, timeout_s=600)


def all_pass(reports: tuple[ValidationReport, ...]) -> None:
    failed = [f"{r.name}: {r.difference}" for r in reports if not r.passed]
    assert not failed, "\n".join(failed)


def graph_of(name: str) -> OpGraph:
    # A router that stays in float32 shows only beside another dtype; grouped products take no odd widths in bfloat16.
    dtype = "bfloat16" if name == "deepseek-v3" else "float32"
    return trace(SOURCES[name].build(dtype=dtype), name=name)


def cases_of(graph: OpGraph, *, uneven: bool) -> list[Case]:
    points = {
        "tp": Degrees(tp=4, etp=4),
        "ep": Degrees(tp=4, ep=4),
        "ep_x_etp": Degrees(tp=4, ep=2, etp=2),
        "dp_ep": Degrees(dp=4, ep=4, batch=4),
        "dp_ep_x_etp": Degrees(dp=2, tp=2, ep=2, etp=2, batch=2),
    }
    found = []
    for point, degrees in points.items():
        for pattern in PATTERNS if uneven else ("megatron",):
            for dispatch in (None, 0):
                s = pattern_strategy(graph, degrees, pattern, dispatch=dispatch, uneven=uneven)
                found.append(Case(name=f"{point}/{pattern}/{s.choice(DISPATCH)}", strategy=s))
    return found


def test_the_padding_of_a_mixtral_by_hand() -> None:
    graph = graph_of("mixtral")
    strategy = pattern_strategy(graph, Degrees(tp=4, ep=2, etp=2), "megatron", uneven=True)
    found = {k: [(d.dim, d.size, d.to, d.axis) for d in v] for k, v in paddings(graph, strategy).items()}
    # 250 rows to 4 x 63; 7 experts to 2 x 4; 6 heads as 2 groups of 3 to 2 groups of 4; 90 = 2 x 45 needs nothing.
    assert found["prologue/embed"] == [("vocab", 250, 252, "tp")]
    assert found["epilogue/head"] == [("vocab", 250, 252, "tp")]
    assert found["layers/experts_up"] == [("experts", 7, 8, "ep")]
    assert found["layers/attention"] == [("heads", 6, 8, "tp")]
    assert [(d[1], d[2]) for d in found["layers/q"]] == [(96, 128)] == [(d[1], d[2]) for d in found["layers/o"]]
    assert "layers/k" not in found and "layers/router" not in found


@pytest.mark.wide
@pytest.mark.parametrize("name", sorted(SOURCES))
def test_heads_and_widths_that_may_be_padded(name: str) -> None:
    graph = graph_of(name)
    all_pass(run(name, cases_of(graph, uneven=True), graph))


@pytest.mark.wide
@pytest.mark.parametrize("name", sorted(SOURCES))
def test_random_uneven_strategies(name: str) -> None:
    graph = graph_of(name)
    drawn = random_strategies(graph, 4, 40, seed=11, uneven=True)
    all_pass(run(name, [Case(name=f"random {i}", strategy=s) for i, s in enumerate(drawn)], graph))


def test_a_vocabulary_and_experts_are_padded_unasked() -> None:
    name = "mixtral"
    graph = graph_of(name)
    strategy: Strategy = pattern_strategy(graph, Degrees(dp=2, tp=2, ep=4, batch=2), "megatron", dispatch=0)
    assert set(paddings(graph, strategy)) == {"layers/experts_up", "layers/experts_down"}  # 250 = 2 x 125
    gathered = pattern_strategy(graph, Degrees(dp=2, tp=2, ep=4, batch=2), "megatron")
    # Scores of 7 experts over tp=2 are gathered as 2 x 4: the eighth is none that a token may choose.
    router = replace(gathered, choices=(*gathered.choices, ("layers/router", 0)), uneven=True)
    assert strategy_reasons(graph, replace(router, uneven=False)) and not strategy_reasons(graph, router)
    (scores,) = {c.num_bytes for c in collectives(graph, router, tokens=3, activation_bytes=2) if "router" in c.where}
    assert scores == 3 * 8 * 4
    cases = {"exchanged": strategy, "gathered": gathered, "router": router}
    all_pass(run(name, [Case(name=n, strategy=s) for n, s in cases.items()], graph))
