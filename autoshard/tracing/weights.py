"""Random weights for runs that compare: every parameter matters, nothing saturates, and the values are reproducible."""

import hashlib

import torch
from torch import Tensor, nn


def fill_random(model: nn.Module, seed: int) -> None:
    """Fill all parameters and persistent floating buffers in place.

    Matrices get variance 1 / fan-in (last dim), scales of norms 1 + 0.3 N, biases 0.3 N, buffers 0.1 N. A value
    depends on the seed and the tensor's name and shape only, not on device, dtype or the order of parameters.
    """
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name, parameter in parameters.items():
            noise = _noise(name, parameter, seed)
            if parameter.ndim >= 2:
                parameter.copy_(noise / parameter.shape[-1] ** 0.5)
            else:
                owner = model.get_submodule(name.rpartition(".")[0])
                scales = all(p.ndim < 2 for p in owner.parameters(recurse=False)) and not name.endswith("bias")
                parameter.copy_(0.3 * noise + (1.0 if scales else 0.0))
        for name, value in model.state_dict(keep_vars=True).items():
            if not isinstance(value, nn.Parameter) and value.is_floating_point():
                value.copy_(0.1 * _noise(name, value, seed))


def _noise(name: str, like: Tensor, seed: int) -> Tensor:
    """Standard normal values in float64 on the CPU."""
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    generator = torch.Generator(device="cpu").manual_seed(int.from_bytes(digest[:7], "big"))
    return torch.randn(like.shape, generator=generator, dtype=torch.float64, device="cpu")
