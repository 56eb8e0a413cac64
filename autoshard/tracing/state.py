"""What a layer keeps for a sequence, as the model's own cache holds it.

transformers models keep keys and values, and what a linear-attention, state-space or convolution layer remembers, in
their cache. Two forwards on meta tensors with such a cache, repeated layers folded, say how much that is, in which
dtype, and what of it grows with the sequence. A model that makes a cache class of its own is asked for that. Models
without a cache of either form have no known state: their mixers count zero bytes, and the trace says so by
`state_bytes` 0.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from autoshard.tracing.config_check import quiet_transformers
from autoshard.tracing.export import TRACE_BATCH, traceable_kernels
from autoshard.tracing.fold import Stack, folded

_LENGTHS = (255, 511)
"""Tokens when a cache is looked at. One short of a round number: buffers of tokens yet to be pooled are full then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What a layer keeps for one sequence.

    ``recurrent_elements`` are those of a recurrence, ``state_bytes`` all bytes whatever the length.
    ``key_bytes_per_token`` are the keys and values of a token, within a window or not; ``grown_bytes_per_token`` what
    else is added with every token.
    """

    recurrent_elements: int = 0
    state_bytes: float = 0.0
    key_bytes_per_token: float = 0.0
    grown_bytes_per_token: float = 0.0


class StateProbe:
    """What every layer keeps; the forwards run once, when first asked."""

    def __init__(self, model: nn.Module, stacks: Sequence[Stack]) -> None:
        self._model = model
        self._layers = [layer for stack in stacks for layer in stack.layers]
        self._found: dict[str, Kept] | None = None

    def of(self, fqn: str) -> Kept:
        """What the layer around module ``fqn`` keeps."""
        if self._found is None:
            self._found = dict(self._run())
        layer = next((name for name in self._layers if fqn == name or fqn.startswith(name + ".")), "")
        return self._found.get(layer, Kept())

    def _run(self) -> Iterator[tuple[str, Kept]]:
        config: Any = getattr(self._model, "config", None)
        if not hasattr(config, "get_text_config"):
            return
        for make in (True, False):
            try:
                held = self._held(config, make=make)
            except Exception:  # a model that keeps its state in another way
                continue
            for i, name in enumerate(self._layers):
                before, after = (layers[i] if i < len(layers) else {} for layers in held)
                yield name, _kept(before, after)
            return

    def _held(self, config: Any, *, make: bool) -> list[list[dict[str, tuple[int, int]]]]:
        """Per length and layer (elements, bytes) of every tensor in the cache of one sequence, by its name.

        The cache is transformers' own kind if ``make``, else the kind that the model makes for itself.
        """
        from transformers import DynamicCache

        cache: Any = None
        held = []
        with quiet_transformers(), torch.no_grad(), traceable_kernels(self._model), folded(self._model, bare=True):
            cache = DynamicCache(config=config) if make else None
            done = 0
            for length in _LENGTHS:
                ids = torch.zeros(TRACE_BATCH, length - done, dtype=torch.long, device="meta")
                out: Any = self._model(ids, cache=cache, use_cache=True)
                cache = getattr(out, "cache", None) if cache is None else cache
                done = length
                held.append([_sizes(cache, i) for i in range(len(self._layers))])
        return held


def _kept(before: Mapping[str, tuple[int, int]], after: Mapping[str, tuple[int, int]]) -> Kept:
    """From the tensors held at the two lengths."""
    elements, state, keys, grown = 0, 0.0, 0.0, 0.0
    for name, (numel, num_bytes) in after.items():
        if name in ("keys", "values"):
            keys += num_bytes
            continue
        more = num_bytes - before.get(name, (0, 0))[1]
        grown += more
        state += 0 if more else num_bytes
        if not more and name.startswith(("recurrent", "own")):
            elements += numel
    return Kept(
        recurrent_elements=elements,
        state_bytes=state,
        key_bytes_per_token=keys / _LENGTHS[1],
        grown_bytes_per_token=grown / (_LENGTHS[1] - _LENGTHS[0]),
    )


def _sizes(cache: Any, layer: int) -> dict[str, tuple[int, int]]:
    """(elements, bytes) per sequence of a layer's tensors, in its part of the cache and in the cache's own tables."""
    found: dict[str, tuple[int, int]] = {}
    seen: set[int] = set()
    parts = list(vars(cache.layers[layer]).items()) if layer < len(cache.layers) else []
    for key, value in vars(cache).items():
        if key != "layers" and isinstance(value, (list, tuple, dict)):
            own = value.get(layer) if isinstance(value, dict) else value[layer] if layer < len(value) else None
            parts.append((f"own_{key}", own))
    for key, value in parts:
        for name, tensor in _tensors(key, value):
            if id(tensor) not in seen:  # keys that are the values are held once
                seen.add(id(tensor))
                found[name] = (tensor.numel() // TRACE_BATCH, tensor.numel() * tensor.element_size() // TRACE_BATCH)
    return found


def _tensors(name: str, value: Any) -> Iterator[tuple[str, Tensor]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, (list, tuple)) else ()
    if isinstance(value, Tensor) and value.ndim > 1:
        yield name, value
    for key, item in items:
        yield from _tensors(f"{name}_{key}", item)
