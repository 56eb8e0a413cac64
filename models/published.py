"""What publishers say about their models: the parameters that a token uses, in billions, as the model card rounds them.

Publishers differ in what they count: all weights a token passes; without the embedding table, of which it reads one
row; or without the head as well. No number here is ours.
"""

from collections.abc import Mapping
from types import MappingProxyType

ACTIVE_BILLIONS: Mapping[str, float] = MappingProxyType(
    {
        "mixtral-8x7b": 12.9,
        "mixtral-8x22b": 39,
        "qwen3-30b-a3b": 3.3,
        "qwen3-235b-a22b": 22,
        "qwen3-coder-480b": 35,
        "olmoe-1b-7b": 1.3,
        "deepseek-v3": 37,
        "deepseek-v3.2": 37,
        "kimi-k2": 32,
        "glm-5": 40,
        "gpt-oss-20b": 3.6,
        "gpt-oss-120b": 5.1,
        "llama-4-scout": 17,
        "llama-4-maverick": 17,
        "glm-4.5-air": 12,
        "glm-4.5": 32,
        "minimax-m2.5": 10,
        "phi-3.5-moe": 6.6,
        "qwen2-57b-a14b": 14,
        "qwen3-next-80b-a3b": 3,
        "qwen3.5-35b-a3b": 3,
        "qwen3.5-397b-a17b": 17,
        "nemotron-3-nano": 3.6,
        "jamba-v0.1": 12,
    }
)
"""By catalogue name. From the models' cards at huggingface.co, under the repositories the catalogue names."""
