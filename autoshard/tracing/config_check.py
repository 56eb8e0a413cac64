"""Checks of a config before transformers sees it, so that a mistake is one line about the rule it breaks.

transformers gives sizes that are missing its own defaults and turns others into exceptions from deep inside. Here a
missing or impossible size is named, with what would do.
"""

import difflib
import logging
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from autoshard.errors import InvalidInputError, UnsupportedModelError
from autoshard.tracing.reduce import EXPERT_COUNTS, TOP_K
from autoshard.tracing.store import remembered

_REQUIRED = (
    ("hidden_size",),
    ("num_hidden_layers",),
    ("num_attention_heads",),
    ("vocab_size",),
    ("intermediate_size",),
    ("moe_intermediate_size",),
    EXPERT_COUNTS,
    TOP_K,
)
"""Sizes that must be given, where the architecture has them, each under any of its names."""
_COUNTS = [
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "vocab_size",
    "intermediate_size",
    "moe_intermediate_size",
    "head_dim",
    "max_position_embeddings",
    "sliding_window",
]
_MOST_LAYERS = 2000
"""More layers than any model has: building module by module would not end."""


def check_config(config: Mapping[str, Any], class_name: str) -> None:
    """Check that ``config`` describes a model of transformers class ``class_name``.

    Raises:
        InvalidInputError: for a missing, mistyped or impossible value.
        UnsupportedModelError: for a class transformers does not have.
    """
    if not remembered("checked", [class_name, config], bool, lambda: _check(config, class_name)):
        _check(config, class_name)  # a file that says so: nothing that fails is kept


def _check(config: Mapping[str, Any], class_name: str) -> bool:
    """True, unless it raises."""
    fields, aliases = _config_fields(class_name)
    for names in _REQUIRED:
        known = [n for n in names if n in fields or aliases.get(n) in fields]
        if all(getattr(fields[n if n in fields else aliases[n]], "default", 0) is None for n in known):
            continue  # the model does without it
        given = {k for k, v in config.items() if v is not None}
        given |= {k for k, v in aliases.items() if v in given}
        if known and not given & set(names):
            raise InvalidInputError(f"{class_name} config has no {known[0]}: it must be given, there is no default")
    for name in (*_COUNTS, *EXPERT_COUNTS, *TOP_K):
        _check_count(name, config.get(name), optional=name not in {r[0] for r in _REQUIRED[:4]})
    layers = config.get("num_hidden_layers")
    if isinstance(layers, int) and layers > _MOST_LAYERS:
        raise InvalidInputError(f"num_hidden_layers must be at most {_MOST_LAYERS}, got {layers}")
    _check_heads(config)
    experts = next((config[n] for n in EXPERT_COUNTS if config.get(n) is not None), None)
    top_k = next((config[n] for n in TOP_K if config.get(n) is not None), None)
    if experts and top_k == 0:
        raise InvalidInputError(f"experts per token must be at least 1 of the {experts} experts, got 0")
    if experts is not None and top_k is not None and top_k > experts:
        raise InvalidInputError(f"experts per token ({top_k}) must not exceed the experts ({experts})")
    _check_choices(config)
    return True


def class_of(config: Mapping[str, Any]) -> str:
    """The transformers class a config asks for: the causal LM it names, else the one of its ``model_type``.

    The text part of some multimodal models has no causal LM of its own; then it is the bare decoder's class
    (``...TextModel``), to which a head is added.

    Raises:
        InvalidInputError: if the config names neither.
        UnsupportedModelError: if transformers has neither, with the nearest model type it has.
    """
    names = config.get("architectures") or []
    model_type = config.get("model_type")
    if not model_type and not names:
        raise InvalidInputError("config has neither model_type nor architectures: it does not say which model it is")
    if model_type is not None and not isinstance(model_type, str):
        raise InvalidInputError(f"model_type must be a string, got {model_type!r}")
    return remembered("class", [model_type, names], str, lambda: _class_of(model_type, names))


def _class_of(model_type: str | None, names: Any) -> str:
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CAUSAL_LM
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES as BASE

    for name in names if isinstance(names, (list, tuple)) else []:
        if isinstance(name, str) and name.endswith("ForCausalLM") and hasattr(transformers, name):
            return name
    for table in (CAUSAL_LM, BASE):
        found = table.get(model_type)
        name = found if isinstance(found, str) or found is None else found[0]
        if name is not None and (table is CAUSAL_LM or name.endswith("TextModel")) and hasattr(transformers, name):
            return str(name)
    raise UnsupportedModelError(
        f"transformers {transformers.__version__} has no causal language model of type {model_type!r}"
        f"{_nearest(str(model_type), CAUSAL_LM)}"
    )


def one_line(error: BaseException) -> str:
    """An exception as one line: its type, unless the text of its cause says more, and its first words."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if type(error).__name__.startswith("StrictDataclass") and lines:
        return f"{lines[0]} {lines[-1]}" if len(lines) > 1 else lines[0]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silence transformers' log and the warnings raised while a config is read or a model is built."""
    logger = logging.getLogger("transformers")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _config_fields(class_name: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Fields of the class's config, and its aliases (common name -> own name)."""
    import transformers

    model_class = getattr(transformers, class_name, None)
    config_class = getattr(model_class, "config_class", None)
    if config_class is None:
        known = [n for n in dir(transformers) if n.endswith("ForCausalLM")]
        raise UnsupportedModelError(f"transformers has no model class {class_name!r}{_nearest(class_name, known)}")
    fields = dict(getattr(config_class, "__dataclass_fields__", {}))
    return fields, dict(config_class.attribute_map)


def _check_count(name: str, value: Any, *, optional: bool) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidInputError(f"{name} must be an integer, got {value!r} ({type(value).__name__})")
    if value < 0 or (value == 0 and not optional):
        raise InvalidInputError(f"{name} must be at least 1, got {value}")


def _check_heads(config: Mapping[str, Any]) -> None:
    heads, hidden = config.get("num_attention_heads"), config.get("hidden_size")
    kv_heads = config.get("num_key_value_heads")
    if heads is None:
        return
    if hidden is not None and config.get("head_dim") is None and "kv_lora_rank" not in config and hidden % heads:
        nearest = heads * max(1, round(hidden / heads))
        raise InvalidInputError(
            f"hidden_size ({hidden}) must be a multiple of num_attention_heads ({heads}) where no head_dim is given; "
            f"the nearest that works is {nearest}"
        )
    if kv_heads is not None and (kv_heads == 0 or heads % kv_heads):
        divisors = [d for d in range(1, heads + 1) if heads % d == 0]
        nearest = min(divisors, key=lambda d: abs(d - kv_heads))
        raise InvalidInputError(
            f"num_key_value_heads ({kv_heads}) must divide num_attention_heads ({heads}); "
            f"the nearest that works is {nearest}"
        )


def _check_choices(config: Mapping[str, Any]) -> None:
    """Values that name something transformers has a table of."""
    from transformers.activations import ACT2FN
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    activation = config.get("hidden_act")
    if activation is not None and not (isinstance(activation, str) and activation in ACT2FN):
        raise InvalidInputError(f"hidden_act {activation!r} is not known{_nearest(str(activation), ACT2FN)}")
    for key in ("rope_scaling", "rope_parameters"):
        rope = config.get(key)
        kind = rope.get("rope_type", rope.get("type")) if isinstance(rope, Mapping) else None
        known = isinstance(kind, str) and (kind == "default" or kind in ROPE_INIT_FUNCTIONS)
        if kind is not None and not known:
            raise InvalidInputError(f"{key}: rope type {kind!r} is not known{_nearest(str(kind), ROPE_INIT_FUNCTIONS)}")
    theta = config.get("rope_theta")
    if theta is not None and not (isinstance(theta, (int, float)) and math.isfinite(theta) and theta > 0):
        raise InvalidInputError(f"rope_theta must be a positive number, got {theta!r}")


def _nearest(value: str, known: Iterable[str]) -> str:
    """``; the nearest known is 'x'``, if anything is near."""
    close = difflib.get_close_matches(value, [k for k in known if isinstance(k, str)], n=1, cutoff=0.6)
    return f"; the nearest known is {close[0]!r}" if close else ""
