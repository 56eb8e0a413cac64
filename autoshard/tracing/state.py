"""Recurrent state, as the model's own cache holds it after a prompt.

transformers models keep what a linear-attention, state-space or convolution layer remembers in their cache. A forward
on meta tensors with such a cache, repeated layers folded, says how large it is and in which dtype; a model that makes a
cache class of its own is asked for that. Models without a cache of either form have no known state: their mixers count
zero bytes, and the trace says so by `state_bytes` 0.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from autoshard.tracing.config_check import quiet_transformers
from autoshard.tracing.export import TRACE_BATCH, TRACE_LENGTH, traceable_kernels
from autoshard.tracing.fold import Stack, folded


class StateProbe:
    """Sizes of recurrent state by layer; the forward runs once, when first asked."""

    def __init__(self, model: nn.Module, stacks: Sequence[Stack]) -> None:
        self._model = model
        self._layers = [layer for stack in stacks for layer in stack.layers]
        self._found: dict[str, tuple[int, float]] | None = None

    def of(self, fqn: str) -> tuple[int, float]:
        """(elements of recurrence, bytes of all state) that the layer around module ``fqn`` keeps for one sequence."""
        if self._found is None:
            self._found = dict(self._run())
        layer = next((name for name in self._layers if fqn == name or fqn.startswith(name + ".")), "")
        return self._found.get(layer, (0, 0.0))

    def _run(self) -> Iterator[tuple[str, tuple[int, float]]]:
        config: Any = getattr(self._model, "config", None)
        if not hasattr(config, "get_text_config"):
            return
        cache = self._filled_cache(config)
        if cache is None:
            return
        for i, name in enumerate(self._layers):
            held = cache.layers[i] if i < len(cache.layers) else None
            recurrent = [*_tensors(getattr(held, "recurrent_states", None)), *_own_states(cache, i)]
            convolved = list(_tensors(getattr(held, "conv_states", None)))
            elements = sum(t.numel() for t in recurrent) // TRACE_BATCH
            num_bytes = sum(t.numel() * t.element_size() for t in (*recurrent, *convolved)) / TRACE_BATCH
            yield name, (elements, num_bytes)

    def _filled_cache(self, config: Any) -> Any:
        """The cache after a prompt: transformers' own kind, else the kind that the model makes for itself."""
        from transformers import DynamicCache

        for make in (lambda: DynamicCache(config=config), lambda: None):
            try:
                with (
                    quiet_transformers(),
                    torch.no_grad(),
                    traceable_kernels(self._model),
                    folded(self._model, bare=True),
                ):
                    cache = make()
                    ids = torch.zeros(TRACE_BATCH, TRACE_LENGTH, dtype=torch.long, device="meta")
                    out = self._model(ids, cache=cache, use_cache=True)
                return getattr(out, "cache", None) if cache is None else cache
            except Exception:  # a model that keeps its state in another way
                continue
        return None


def _own_states(cache: Any, layer: int) -> Iterator[Tensor]:
    """Tensors that a cache class of a model's own keeps for a layer, besides what every cache has."""
    for key, value in vars(cache).items():
        if key == "layers" or not isinstance(value, (list, tuple, dict)):
            continue
        held = value.get(layer) if isinstance(value, dict) else value[layer] if layer < len(value) else None
        yield from _tensors(held)


def _tensors(value: Any) -> Iterator[Tensor]:
    for item in value.values() if isinstance(value, dict) else (value,):
        if isinstance(item, Tensor):
            yield item
