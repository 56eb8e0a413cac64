"""A reduced model whose sizes do not divide where its plan's do not, so that padding is run and not only planned."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from autoshard.tracing.reduce import EXPERT_COUNTS
from autoshard.tracing.source import ConfigSource, FactorySource, ModelSource

_EXPERTS = ("moe_intermediate_size", "intermediate_size")
_WIDTHS = ("intermediate_size", "moe_intermediate_size", "intermediate_size_mlp", "shared_expert_intermediate_size")


def make_uneven(source: ModelSource, kinds: Collection[str], ranks: int) -> ModelSource:
    """A reduced source with sizes that ``ranks`` ranks do not divide.

    Args:
        source: Reduced for ``ranks`` ranks.
        kinds: Of ``vocab``, ``experts``, ``heads`` and ``width``, those that are to be uneven.
        ranks: At least two ranks; every one of them still has something.
    """
    if isinstance(source, ConfigSource):
        return replace(source, config={**source.config, **_fields(source.config, kinds, ranks)})
    if isinstance(source, FactorySource):
        return replace(source, kwargs={**source.kwargs, **_fields(source.kwargs, kinds, ranks)})
    return source


def _fields(config: Mapping[str, Any], kinds: Collection[str], ranks: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if "vocab" in kinds:
        found["vocab_size"] = config["vocab_size"] - 3
    if "experts" in kinds:
        groups = int(config.get("n_group") or 1)  # 4 a rank, the last without as many as there are groups
        found |= {key: 4 * ranks - groups for key in EXPERT_COUNTS if config.get(key)}
    if "width" in kinds:
        # Traced in 16 bits, grouped products take multiples of 8 only, so that experts' widths stay as they are.
        experts = next((k for k in _EXPERTS if config.get(k)), None) if any(map(config.get, EXPERT_COUNTS)) else None
        found |= {key: config[key] - 2 for key in _WIDTHS if config.get(key) and key != experts}
    if "heads" in kinds:
        found |= _heads(config, ranks)
    return found


def _heads(config: Mapping[str, Any], ranks: int) -> dict[str, Any]:
    """Two kv heads a rank and one on the last; where ranks share a kv head, two query heads a rank and one."""
    heads = int(config["num_attention_heads"])
    kv_heads = int(config.get("num_key_value_heads") or heads)
    if kv_heads >= ranks:
        kv, group = 2 * ranks - 1, heads // kv_heads
    else:
        kv, group = kv_heads, 2 * (ranks // kv_heads) - 1
    found: dict[str, Any] = {"num_attention_heads": kv * group}
    if config.get("num_key_value_heads"):
        found["num_key_value_heads"] = kv
    if not config.get("head_dim") and not config.get("qk_rope_head_dim"):
        found["hidden_size"] = config["hidden_size"] // heads * kv * group
    return found
