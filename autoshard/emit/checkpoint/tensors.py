"""The tensors of a model that a checkpoint holds: those that are here, and those of other pipeline stages."""

import torch
from torch import Tensor, nn

Described = tuple[tuple[int, ...], torch.dtype]
"""Shape and dtype."""

_ELSEWHERE = "_autoshard_elsewhere"


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and persistent buffers by name, tied ones under every name, as they are (DTensors too)."""
    found: dict[str, Tensor] = {}
    for prefix, module in model.named_modules():
        dot = f"{prefix}." if prefix else ""
        found |= {dot + n: p.data for n, p in module._parameters.items() if p is not None}
        kept = module._non_persistent_buffers_set
        found |= {dot + n: b for n, b in module._buffers.items() if b is not None and n not in kept}
    return found


def note_elsewhere(stand_in: nn.Module, replaced: nn.Module) -> None:
    """Write down on a stand-in what the module of another stage holds that it stands for."""
    held = {name: (tuple(t.shape), t.dtype) for name, t in tensors_of(replaced).items()}
    setattr(stand_in, _ELSEWHERE, held)


def described(model: nn.Module) -> dict[str, Described]:
    """Every tensor of the whole model, whichever stage holds it."""
    found = {name: (tuple(t.shape), t.dtype) for name, t in tensors_of(model).items()}
    for prefix, module in model.named_modules():
        found |= {f"{prefix}.{name}": what for name, what in getattr(module, _ELSEWHERE, {}).items()}
    return found
