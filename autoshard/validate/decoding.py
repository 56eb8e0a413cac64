"""Feeding a model a prompt and cached decode steps, whichever interface it has."""

import sys
from typing import Any

import torch
from torch import Tensor, nn


def new_cache(model: nn.Module) -> Any:
    """An empty cache for ``model``: transformers' for its models, else ``KVCache()`` of the model's own module."""
    if hasattr(model.config, "to_dict"):
        from transformers import DynamicCache

        return DynamicCache(config=model.config)
    return sys.modules[type(model).__module__].KVCache()


@torch.no_grad()
def next_logits(model: nn.Module, ids: Tensor, cache: Any) -> Tensor | None:
    """Logits (b, s, vocab) of ``ids`` (b, s) after what ``cache`` has seen; None on a stage that makes none."""
    if hasattr(model.config, "to_dict"):
        return model(input_ids=ids, cache=cache, use_cache=True).logits  # type: ignore[no-any-return]
    return model(ids, cache=cache)  # type: ignore[no-any-return]


def token_ids(vocab: int, sequences: int, lengths: tuple[int, ...], seed: int) -> list[Tensor]:
    """Random ids (sequences, length) for the prompt and for every decode step."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(vocab, (sequences, length), generator=generator) for length in lengths]
