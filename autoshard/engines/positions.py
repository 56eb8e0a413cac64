"""How many tokens a sequence may have by a model's config, as serving engines derive it.

The least of the lengths that the config names, times the factor of its position scaling: YaRN scales the length it was
made from (``original_max_position_embeddings``), while ``su``, ``longrope`` and ``llama3`` name the scaled length
already (vLLM, config/model.py: _get_and_verify_max_len; SGLang, get_context_length; TensorRT-LLM, infer_max_seq_len).
"""

from collections.abc import Mapping
from typing import Any

KEYS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "max_sequence_length", "max_seq_length")
"""What configs call the length, as vLLM looks for it."""
_SCALED_ALREADY = ("su", "longrope", "llama3", "default", "mrope")


def position_limit(config: Mapping[str, Any]) -> int:
    """The derived length, 0 where the config names none."""
    lengths = [config[key] for key in KEYS if isinstance(config.get(key), int) and config[key] > 0]
    if not lengths:
        return 0
    limit = float(min(lengths))
    scaling = config.get("rope_scaling") or config.get("rope_parameters")
    if isinstance(scaling, Mapping) and "full_attention" in scaling:  # one entry a kind of layer
        scaling = scaling["full_attention"]
    if not isinstance(scaling, Mapping):
        return int(limit)
    kind, factor = scaling.get("rope_type", scaling.get("type")), scaling.get("factor", 1.0)
    if kind is None or kind in _SCALED_ALREADY or not isinstance(factor, int | float):
        return int(limit)
    original = scaling.get("original_max_position_embeddings")
    if kind == "yarn" and isinstance(original, int):
        limit = float(original)
    return int(limit * factor)
