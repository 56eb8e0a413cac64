"""The models known by name: published sizes, and the facts of their configs that shape the computation.

Configs of Hugging Face models hold what the published ``config.json`` says about shapes, rope, norms and routing;
token ids, training options and file versions are left out.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

from .hybrid import HYBRID
from .latent import LATENT
from .presets import GPT_MOE_PRESETS
from .sparse import SPARSE


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueEntry:
    """A model by name.

    ``kind`` says how ``config`` is read: ``"transformers"`` is a ``config.json`` (its ``architectures`` names the
    class); ``"factory"`` holds the keyword arguments of ``target``, a ``"package.module:function"``.
    ``num_parameters`` is the exact count; ``reference`` names the model and how the count was had. No count here was
    read off a checkpoint.
    """

    name: str
    kind: Literal["transformers", "factory"]
    num_parameters: int
    reference: str
    config: Mapping[str, Any]
    target: str | None = None


def _mixtral(**sizes: Any) -> dict[str, Any]:
    """A Mixtral config: GQA, top-2 of 8 experts, gated SiLU."""
    return {
        "model_type": "mixtral",
        "architectures": ["MixtralForCausalLM"],
        "hidden_act": "silu",
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e6,
        "sliding_window": None,
        "tie_word_embeddings": False,
        "vocab_size": 32000,
        **sizes,
    }


def _qwen3_moe(**sizes: Any) -> dict[str, Any]:
    """A Qwen3-MoE config: per-head q/k norms, top-8 renormalised, no dense layers, no sliding window."""
    return {
        "model_type": "qwen3_moe",
        "architectures": ["Qwen3MoeForCausalLM"],
        "attention_bias": False,
        "decoder_sparse_step": 1,
        "head_dim": 128,
        "hidden_act": "silu",
        "mlp_only_layers": [],
        "norm_topk_prob": True,
        "num_experts_per_tok": 8,
        "rms_norm_eps": 1e-6,
        "sliding_window": None,
        "tie_word_embeddings": False,
        "use_sliding_window": False,
        "vocab_size": 151936,
        **sizes,
    }


def _llama_3_1(**sizes: Any) -> dict[str, Any]:
    """A Llama 3.1 config: dense, GQA with 8 kv heads, gated SiLU."""
    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "hidden_act": "silu",
        "max_position_embeddings": 131072,
        "mlp_bias": False,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-5,
        "rope_scaling": {
            "factor": 8.0,
            "high_freq_factor": 4.0,
            "low_freq_factor": 1.0,
            "original_max_position_embeddings": 8192,
            "rope_type": "llama3",
        },
        "rope_theta": 500000.0,
        "tie_word_embeddings": False,
        "vocab_size": 128256,
        **sizes,
    }


_TRANSFORMERS = (
    CatalogueEntry(
        name="mixtral-8x7b",
        kind="transformers",
        num_parameters=46_702_792_704,
        reference="huggingface.co/mistralai/Mixtral-8x7B-v0.1; count summed from the config's shapes",
        config=_mixtral(
            hidden_size=4096,
            intermediate_size=14336,
            num_hidden_layers=32,
            num_attention_heads=32,
            max_position_embeddings=32768,
        ),
    ),
    CatalogueEntry(
        name="mixtral-8x22b",
        kind="transformers",
        # The v0.1 base model has 32,000 tokens; the instruct model has 32,768 and 9,437,184 parameters more.
        num_parameters=140_620_634_112,
        reference="huggingface.co/mistralai/Mixtral-8x22B-v0.1; count summed from the config's shapes",
        config=_mixtral(
            hidden_size=6144,
            intermediate_size=16384,
            num_hidden_layers=56,
            num_attention_heads=48,
            max_position_embeddings=65536,
        ),
    ),
    CatalogueEntry(
        name="qwen3-30b-a3b",
        kind="transformers",
        num_parameters=30_532_122_624,
        reference="huggingface.co/Qwen/Qwen3-30B-A3B; count summed from the config's shapes",
        config=_qwen3_moe(
            hidden_size=2048,
            intermediate_size=6144,
            moe_intermediate_size=768,
            num_hidden_layers=48,
            num_attention_heads=32,
            num_key_value_heads=4,
            num_experts=128,
            max_position_embeddings=40960,
            rope_theta=1e6,
        ),
    ),
    CatalogueEntry(
        name="qwen3-235b-a22b",
        kind="transformers",
        num_parameters=235_093_634_560,
        reference="huggingface.co/Qwen/Qwen3-235B-A22B; count summed from the config's shapes",
        config=_qwen3_moe(
            hidden_size=4096,
            intermediate_size=12288,
            moe_intermediate_size=1536,
            num_hidden_layers=94,
            num_attention_heads=64,
            num_key_value_heads=4,
            num_experts=128,
            max_position_embeddings=40960,
            rope_theta=1e6,
        ),
    ),
    CatalogueEntry(
        name="qwen3-coder-480b",
        kind="transformers",
        num_parameters=480_154_875_392,
        reference="huggingface.co/Qwen/Qwen3-Coder-480B-A35B-Instruct ; count summed from the config's shapes",
        config=_qwen3_moe(
            hidden_size=6144,
            intermediate_size=8192,
            moe_intermediate_size=2560,
            num_hidden_layers=62,
            num_attention_heads=96,
            num_key_value_heads=8,
            num_experts=160,
            max_position_embeddings=262144,
            rope_theta=1e7,
        ),
    ),
    CatalogueEntry(
        name="olmoe-1b-7b",
        kind="transformers",
        num_parameters=6_919_161_856,
        reference="huggingface.co/allenai/OLMoE-1B-7B-0924; count summed from the config's shapes",
        config={
            "model_type": "olmoe",
            "architectures": ["OlmoeForCausalLM"],
            "attention_bias": False,
            "clip_qkv": None,
            "hidden_act": "silu",
            "hidden_size": 2048,
            "intermediate_size": 1024,
            "max_position_embeddings": 4096,
            "norm_topk_prob": False,
            "num_attention_heads": 16,
            "num_experts": 64,
            "num_experts_per_tok": 8,
            "num_hidden_layers": 16,
            "num_key_value_heads": 16,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "tie_word_embeddings": False,
            "vocab_size": 50304,
        },
    ),
    CatalogueEntry(
        name="qwen3-32b",
        kind="transformers",
        num_parameters=32_762_123_264,
        reference="huggingface.co/Qwen/Qwen3-32B; count summed from the config's shapes",
        config={
            "model_type": "qwen3",
            "architectures": ["Qwen3ForCausalLM"],
            "attention_bias": False,
            "head_dim": 128,
            "hidden_act": "silu",
            "hidden_size": 5120,
            "intermediate_size": 25600,
            "max_position_embeddings": 40960,
            "num_attention_heads": 64,
            "num_hidden_layers": 64,
            "num_key_value_heads": 8,
            "rms_norm_eps": 1e-6,
            "rope_theta": 1e6,
            "sliding_window": None,
            "tie_word_embeddings": False,
            "use_sliding_window": False,
            "vocab_size": 151936,
        },
    ),
    CatalogueEntry(
        name="llama-3.1-8b",
        kind="transformers",
        num_parameters=8_030_261_248,
        reference="huggingface.co/meta-llama/Llama-3.1-8B; count summed from the config's shapes",
        config=_llama_3_1(
            hidden_size=4096,
            intermediate_size=14336,
            num_attention_heads=32,
            num_hidden_layers=32,
        ),
    ),
    CatalogueEntry(
        name="llama-3.1-70b",
        kind="transformers",
        num_parameters=70_553_706_496,
        reference="huggingface.co/meta-llama/Llama-3.1-70B; count summed from the config's shapes",
        config=_llama_3_1(
            hidden_size=8192,
            intermediate_size=28672,
            num_attention_heads=64,
            num_hidden_layers=80,
        ),
    ),
)

_FAMILIES = tuple(
    CatalogueEntry(
        name=name,
        kind="transformers",
        num_parameters=count,
        reference=f"huggingface.co/{repository}; count summed from the config's shapes",
        config=config,
    )
    for name, (count, repository, config) in {**LATENT, **SPARSE, **HYBRID}.items()
)

_FACTORIES = tuple(
    CatalogueEntry(
        name=name,
        kind="factory",
        num_parameters=preset.num_parameters,
        reference="sizes chosen in autoshard_models.presets; summed from shapes",
        config=preset.config,
        target="autoshard_models.gpt_moe:build",
    )
    for name, preset in GPT_MOE_PRESETS.items()
)

CATALOGUE: Mapping[str, CatalogueEntry] = MappingProxyType(
    {e.name: e for e in (*_TRANSFORMERS, *_FAMILIES, *_FACTORIES)}
)
"""Every model known by name."""
