"""Cutting a call of a model into microbatches, and putting what comes back together.

Tensors with the batch as first of at least two dims are cut; everything else (positions of one row, numbers, flags) is
the same for all. A cache belongs to its sequences, so a batch in several microbatches has several: they are kept with
the caller's, which counts tokens but holds none.
"""

import copy
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from autoshard.emit.foreign import count_tokens, is_transformers_cache
from autoshard.errors import InvalidInputError

_PARTS = "_autoshard_microbatches"
_CACHE_FIELDS = ("cache", "past_key_values")


def batch_shape(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, int]:
    """(sequences, tokens of each) of a call: of its ids, else of its first tensor.

    Raises:
        InvalidInputError: when no argument has both.
    """
    tensors = [v for v in (*args, *kwargs.values()) if isinstance(v, Tensor) and v.ndim > 1]
    if not tensors:
        raise InvalidInputError("a pipelined model is called with ids (sequences, tokens) on every rank")
    return int(tensors[0].shape[0]), int(tensors[0].shape[1])


def part_of(value: Any, index: int, count: int, batch: int) -> Any:
    """What microbatch ``index`` of ``count`` gets of an argument."""
    if isinstance(value, Tensor):
        if value.ndim < 2 or value.shape[0] != batch:
            return value
        share = batch // count
        return value[index * share : (index + 1) * share]
    if isinstance(value, dict) and type(value) is dict:
        return {k: part_of(v, index, count, batch) for k, v in value.items()}
    if isinstance(value, list | tuple) and type(value) in (list, tuple):
        return type(value)(part_of(v, index, count, batch) for v in value)
    return caches_of(value, count)[index] if is_state(value) else value


def is_state(value: Any) -> bool:
    """Whether an argument is a cache: an object of its own that remembers."""
    return not (value is None or isinstance(value, Tensor | bool | int | float | str | dict | list | tuple))


def without_state(part: Any) -> Any:
    """Positional or keyword arguments of a call with no cache."""
    if isinstance(part, dict):
        return {k: None if is_state(v) else v for k, v in part.items()}
    return tuple(None if is_state(v) else v for v in part)


def tensors_in(values: Sequence[Any]) -> list[Tensor]:
    """All tensors in (nested) arguments, in order."""
    found: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, list | tuple):
            found += tensors_in(value)
        elif isinstance(value, dict):
            found += tensors_in(list(value.values()))
    return found


def caches_of(cache: Any, count: int) -> list[Any]:
    """The cache of every microbatch, made of an empty ``cache`` when it is first seen.

    Raises:
        InvalidInputError: when it has been used with another number of microbatches, or outside of the pipeline.
    """
    parts: list[Any] | None = getattr(cache, _PARTS, None)
    if parts is None:
        if is_transformers_cache(cache) and cache.get_seq_length() > 0:
            raise InvalidInputError(f"a cache filled without microbatches cannot go on with {count} of them")
        parts = [copy.deepcopy(cache) for _ in range(count)]
        setattr(cache, _PARTS, parts)
    if len(parts) != count:
        raise InvalidInputError(f"a cache of {len(parts)} microbatches cannot go on with {count}")
    return parts


def advance(values: Sequence[Any], ids: Tensor) -> None:
    """Let the caller's own transformers caches count the tokens of ``ids`` (b, s), in every layer."""
    for value in values:
        if is_transformers_cache(value) and getattr(value, _PARTS, None) is not None:
            for layer in range(len(value.layers)):
                count_tokens(value, layer, ids)


def own_cache(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """``kwargs`` with the cache that a transformers model would make for itself, so that microbatches can share it."""
    config = getattr(model, "config", None)
    if not hasattr(config, "to_dict") or kwargs.get("use_cache") is False or not getattr(config, "use_cache", False):
        return kwargs
    if any(is_transformers_cache(v) for v in (*args, *kwargs.values())):
        return kwargs
    from transformers import DynamicCache

    return {**kwargs, "cache": DynamicCache(config=config)}


def with_logits(output: Any, logits: Tensor | None, caches: Sequence[Any]) -> Any:
    """``output`` of one microbatch as that of the whole call: these logits, and the caller's cache.

    Raises:
        InvalidInputError: when something else was asked for that only one stage has.
    """
    if isinstance(output, Tensor):
        return logits
    if not hasattr(output, "logits") or not hasattr(output, "keys"):
        raise InvalidInputError(
            f"a pipelined model returns logits or a transformers output, this one returned {type(output).__name__}"
        )
    fields: dict[str, Any] = {"logits": logits}
    for name, value in output.items():
        if name in _CACHE_FIELDS:
            fields["cache"] = next((c for c in caches if is_transformers_cache(c)), value)
        elif name != "logits" and value is not None:
            raise InvalidInputError(f"with pp > 1 a model returns logits and its cache, not {name}")
    return type(output)(**fields)


def logits_of(output: Any) -> Tensor:
    """The logits in what a model returns."""
    found: Tensor = output if isinstance(output, Tensor) else output.logits
    return found
