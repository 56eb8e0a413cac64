"""The tensors of a model that a checkpoint holds."""

from torch import Tensor, nn


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and persistent buffers by name, tied ones under every name, as they are (DTensors too)."""
    found: dict[str, Tensor] = {}
    for prefix, module in model.named_modules():
        dot = f"{prefix}." if prefix else ""
        found |= {dot + n: p.data for n, p in module._parameters.items() if p is not None}
        kept = module._non_persistent_buffers_set
        found |= {dot + n: b for n, b in module._buffers.items() if b is not None and n not in kept}
    return found
