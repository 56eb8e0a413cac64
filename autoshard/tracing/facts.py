"""What a config says about a model beyond its decoder: other parts, quantisation, extra prediction layers, its name."""

from collections.abc import Mapping
from typing import Any

from torch import nn

from autoshard.ir import OpGraph
from autoshard.tracing.config_check import quiet_transformers
from autoshard.tracing.source import ConfigSource, ModelSource
from autoshard.tracing.store import remembered

_MTP_COUNTS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules", "num_mtp_layers")
_QUANTISED = ("quant_method", "fmt", "weight_block_size", "bits", "group_size", "activation_scheme")


def config_facts(source: ModelSource, graph: OpGraph) -> dict[str, Any]:
    """Facts of a source for people and programs: ``other_parameters``, ``mtp``, ``quantization``, ``notices``."""
    if not isinstance(source, ConfigSource):
        return {"other_parameters": 0, "mtp": None, "quantization": None, "notices": []}
    return remembered("facts", source.to_dict(), dict[str, Any], lambda: _config_facts(source, graph))


def _config_facts(source: ConfigSource, graph: OpGraph) -> dict[str, Any]:
    given = {**source.config, **(source.whole or {})}
    return {
        "other_parameters": _other_parameters(source, graph),
        "mtp": _extra_prediction(given, graph),
        "quantization": _quantisation(given),
        "notices": notices(source),
    }


def notices(source: ModelSource) -> list[str]:
    """What to tell the user about how a config was read."""
    if not isinstance(source, ConfigSource):
        return []
    import transformers

    found = []
    known = getattr(transformers, source.class_name).config_class.model_type
    given = source.config.get("model_type")
    if given not in (None, known):
        found.append(f"model type {given!r} is read as {known!r}, by the class its config names ({source.class_name})")
    if source.whole is not None:
        kind = source.whole.get("model_type", "multimodal")
        found.append(f"{source.name} is a {kind} model; its text decoder ({source.class_name}) is what is planned")
    if source.class_name.endswith("TextModel"):
        found.append(f"{source.class_name} has no head of its own; a language-model head was added")
    if source.config.get("auto_map"):
        found.append("the config points to code of its own (auto_map), which is never run")
    return found


def _other_parameters(source: ConfigSource, graph: OpGraph) -> int | None:
    """Parameters of the multimodal model outside its text decoder; None if transformers cannot build the whole."""
    if source.whole is None:
        return 0
    import torch
    import transformers

    names = source.whole.get("architectures") or [""]
    model_class = getattr(transformers, str(names[0]), None)
    if model_class is None:
        return None
    try:
        with quiet_transformers(), torch.device("meta"):
            config = model_class.config_class(**{**source.whole, "text_config": dict(source.config)})
            whole: nn.Module = model_class._from_config(config)
    except Exception:  # whatever a vision part's config may hold: it is not what is planned
        return None
    total = sum(p.numel() for p in whole.parameters())
    return total - graph.num_parameters if total >= graph.num_parameters else None


def _extra_prediction(config: Mapping[str, Any], graph: OpGraph) -> dict[str, int] | None:
    """Multi-token prediction: layers the config announces and transformers' classes do not hold.

    Each is taken as one more layer of the last kind, two norms over its inputs, one after it, and the matrix (2h -> h)
    that joins them; embedding and head are shared with the model.
    """
    counts = [config[k] for k in _MTP_COUNTS if isinstance(config.get(k), int)]
    layers = next((n for n in counts if n > 0), 0)
    if not layers or any("mtp" in p.fqn for *_, p in graph.parameters()):
        return None
    block = graph.blocks[graph.layers[-1]]
    hidden = next((op.hidden.size for _, op in graph.all_ops() if op.kind == "embedding"), 0)
    each = sum(op.num_parameters for op in block.ops) + 2 * hidden * hidden + 3 * hidden
    return {"layers": layers, "parameters": layers * each}


def _quantisation(config: Mapping[str, Any]) -> dict[str, Any] | None:
    given = config.get("quantization_config")
    if not isinstance(given, Mapping):
        return None
    found = {k: given[k] for k in _QUANTISED if given.get(k) is not None}
    kept = given.get("modules_to_not_convert") or given.get("ignored_layers") or []
    return {**found, "kept": len(kept) if isinstance(kept, (list, tuple)) else 0}
