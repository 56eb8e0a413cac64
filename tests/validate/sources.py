"""Small models of every architecture, as sources that ranks can build."""

from functools import cache

from autoshard.ir import OpGraph
from autoshard.tracing import ConfigSource, FactorySource, ModelSource, trace

_SIZES = {
    "vocab_size": 256,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
    "intermediate_size": 96,
}


def _config(name: str, class_name: str, **more: object) -> ModelSource:
    return ConfigSource(name=name, class_name=class_name, config={**_SIZES, **more})


_MIXTRAL = {"num_local_experts": 8, "num_experts_per_tok": 2}
_QWEN3 = {"moe_intermediate_size": 48, "head_dim": 16, "num_experts": 8, "num_experts_per_tok": 2}
SOURCES: dict[str, ModelSource] = {
    source.name: source
    for source in (
        _config("mixtral", "MixtralForCausalLM", **_MIXTRAL),
        _config("qwen3-moe", "Qwen3MoeForCausalLM", **_QWEN3, norm_topk_prob=True, mlp_only_layers=[0]),
        _config("olmoe", "OlmoeForCausalLM", num_experts=8, num_experts_per_tok=2),
        _config("llama", "LlamaForCausalLM"),
        _config("llama-tied", "LlamaForCausalLM", tie_word_embeddings=True),
        _config("llama-biases", "LlamaForCausalLM", attention_bias=True, mlp_bias=True),
        _config("mixtral-3-layers", "MixtralForCausalLM", **{**_MIXTRAL, "num_hidden_layers": 3}),
        _config("mixtral-2-kv-heads", "MixtralForCausalLM", **{**_MIXTRAL, "num_key_value_heads": 2}),
        _config("olmoe-2-kv-heads", "OlmoeForCausalLM", num_experts=8, num_experts_per_tok=2, num_key_value_heads=2),
        _config("qwen3-1-kv-head", "Qwen3MoeForCausalLM", **{**_QWEN3, "num_key_value_heads": 1}),
        _config("phi3", "Phi3ForCausalLM", pad_token_id=0),
        _config("gpt-neox", "GPTNeoXForCausalLM"),
        _config("falcon", "FalconForCausalLM", new_decoder_architecture=True, num_kv_heads=4),
        FactorySource(name="fused-gpt", target="tests.validate.fused_gpt:build"),
        ConfigSource(
            name="qwen3-next",
            class_name="Qwen3NextForCausalLM",
            config={
                **_SIZES,
                **_QWEN3,
                "shared_expert_intermediate_size": 48,
                "layer_types": ["linear_attention", "full_attention"],
                "linear_num_key_heads": 4,
                "linear_num_value_heads": 8,
                "linear_key_head_dim": 8,
                "linear_value_head_dim": 12,
                "linear_conv_kernel_dim": 4,
            },
        ),
        FactorySource(
            name="gpt-moe",
            target="autoshard_models.gpt_moe:build",
            kwargs={**_SIZES, "head_dim": 16, "num_experts": 8, "num_experts_per_tok": 2},
        ),
    )
}


@cache
def graph_of(name: str) -> OpGraph:
    return trace(SOURCES[name].build(dtype="float32"), name=name)
