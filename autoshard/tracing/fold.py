"""Folding: trace each distinct kind of layer once, whatever the depth.

Children of a ``ModuleList`` or ``Sequential`` with the same structure (classes, scalar attributes, parameter and buffer
shapes) do the same computation. While folded, the first of each kind runs its own forward; a repeat is one opaque op,
so that the cost of a trace does not grow with depth. Attributes that merely count layers (``layer_idx``) are recognised
by their values, not their names.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

_Attributes = dict[tuple[str, str], object]
_TORCHS_OWN = frozenset(vars(nn.Module()))
_MOST_PARTS = 4
"""Most parts of a layer that are counted through the model (two attentions a layer, say)."""


@torch.library.custom_op("autoshard::repeated_layer", mutates_args=())
def repeated_layer(x: Tensor, sizes: list[int], dtype: torch.dtype) -> Tensor:
    """Stand-in for a layer whose structure was traced already: a tensor of the shape and dtype that layer returns."""
    return x.new_zeros(sizes, dtype=dtype)


@repeated_layer.register_fake
def _repeated_layer_fake(x: Tensor, sizes: list[int], dtype: torch.dtype) -> Tensor:
    return x.new_empty(sizes, dtype=dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """The layers of one list of modules: FQNs in model order, grouped by kind (kinds in order of first appearance)."""

    layers: tuple[str, ...]
    kinds: tuple[tuple[str, ...], ...]


def find_stacks(model: nn.Module) -> tuple[Stack, ...]:
    """Every outermost list of layers, with the layers grouped by structure.

    A list is a non-empty ``ModuleList`` that owns parameters, or what repeats in a ``Sequential``: from the first child
    with parts of its own that has the structure of another to the last. Children of any other module are one where
    they repeat and hold lists themselves: layers kept as attributes, each with its experts.
    """
    stacks: list[Stack] = []
    prefixes: list[str] = []
    for name, module in model.named_modules():
        if any(name.startswith(p + ".") for p in prefixes):
            continue
        layers = _layers(module)
        if not any(True for layer in layers.values() for _ in layer.parameters()):
            continue
        names = [f"{name}.{child}" if name else child for child in layers]
        prefixes += [name] if isinstance(module, nn.ModuleList) else names
        kinds: dict[str, list[str]] = {}
        for layer, key in zip(names, _structural_hashes(list(layers.values())), strict=True):
            kinds.setdefault(key, []).append(layer)
        stacks.append(Stack(layers=tuple(names), kinds=tuple(tuple(k) for k in kinds.values())))
    return tuple(stacks)


def _layers(module: nn.Module) -> dict[str, nn.Module]:
    """Children of a list of modules that are layers, by name."""
    children = dict(module.named_children())
    if isinstance(module, nn.ModuleList):
        return children
    if not isinstance(module, nn.Sequential):
        children = {name: child for name, child in children.items() if _holds_lists(child)}
        if len(children) < 2:
            return {}
    keys = _structural_hashes(list(children.values()))
    deep = [next(child.children(), None) is not None for child in children.values()]
    repeated = [i for i, key in enumerate(keys) if deep[i] and keys.count(key) > 1]
    names = list(children)[repeated[0] : repeated[-1] + 1] if repeated else []
    return {name: children[name] for name in names}


def _holds_lists(module: nn.Module) -> bool:
    """Whether there is a ``ModuleList`` with parameters below a module that is none."""
    lists = (m for m in module.modules() if isinstance(m, nn.ModuleList))
    is_list = isinstance(module, nn.ModuleList)
    return not is_list and any(True for each in lists for _ in each.parameters())


def _structural_hashes(layers: list[nn.Module]) -> list[str]:
    """One hash per layer; equal for layers that compute the same."""
    attributes = [_scalar_attributes(layer) for layer in layers]
    counters = _layer_counters(attributes)
    hashes = []
    for layer, scalars in zip(layers, attributes, strict=True):
        parts = [f"{key}={value!r}" for key, value in scalars.items() if key not in counters]
        for name, module in layer.named_modules():
            parts.append(f"{name}:{type(module).__module__}.{type(module).__qualname__}")
            for tensors in (module._parameters, module._buffers):
                parts += [f"{name}.{n}:{tuple(t.shape)}:{t.dtype}" for n, t in tensors.items() if t is not None]
        hashes.append(hashlib.sha256("\n".join(sorted(parts)).encode()).hexdigest())
    return hashes


def _scalar_attributes(layer: nn.Module) -> _Attributes:
    """Plain-valued attributes of every module below ``layer``, torch's own apart, by (module, attribute)."""
    found: _Attributes = {}
    for name, module in layer.named_modules():
        for key, value in vars(module).items():
            if key in _TORCHS_OWN:
                continue
            items = value if isinstance(value, (tuple, list)) else (value,)
            if all(item is None or isinstance(item, (bool, int, float, str)) for item in items):
                found[name, key] = value
    return found


def _layer_counters(attributes: list[_Attributes]) -> set[tuple[str, str]]:
    """Attributes that count layers, or the parts of layers, from 0 or from 1.

    In every layer that has them, they are the layer's position times the parts of a layer, plus the part.
    """
    values: dict[tuple[str, str], dict[int, object]] = {}
    for i, scalars in enumerate(attributes):
        for key, value in scalars.items():
            values.setdefault(key, {})[i] = value
    return {key for key, at in values.items() if len(attributes) > 1 and _counts(at)}


def _counts(at: dict[int, object]) -> bool:
    """Whether the values at positions are ``parts * position + part`` or one more, for a few parts."""
    numbers = {i: v for i, v in at.items() if isinstance(v, int) and not isinstance(v, bool)}
    if len(numbers) != len(at):
        return False
    for parts in range(1, _MOST_PARTS + 1):
        offsets = {v - parts * i for i, v in numbers.items()}
        if len(offsets) == 1 and 0 <= offsets.pop() <= parts:
            return True
    return False


@contextmanager
def folded(model: nn.Module, *, bare: bool = False) -> Iterator[tuple[Stack, ...]]:
    """Within the context, repeats of a layer run as :func:`repeated_layer`; yields the stacks found.

    ``bare`` takes the repeats' parameters out of the model meanwhile: a graph then has no input for each of them. A run
    of repeats is then one op: the cost of a trace does not grow with depth.
    """
    stacks = find_stacks(model)
    patched: list[nn.Module] = []
    replaced: list[tuple[nn.Module, str, nn.Module]] = []
    made: list[tuple[Tensor, list[Tensor]]] = []
    try:
        for stack in stacks:
            for kind in stack.kinds:
                if len(kind) == 1:
                    continue
                first = model.get_submodule(kind[0])
                returned = _note_result(first)
                patched.append(first)
                for name in kind[1:]:
                    parent, _, child = name.rpartition(".")
                    owner, layer = model.get_submodule(parent), model.get_submodule(name)
                    repeat = _Repeat(layer, returned, made if bare else None)
                    if bare:
                        owner._modules[child] = repeat
                        replaced.append((owner, child, layer))
                    else:
                        layer.forward = repeat.forward
                        patched.append(layer)
        yield stacks
    finally:
        for module in patched:
            vars(module).pop("forward", None)
        for owner, child, layer in replaced:
            owner._modules[child] = layer


class _Repeat(nn.Module):
    """In place of a repeated layer: no parameters, its attributes, and results like those of the first of its kind."""

    def __init__(self, layer: nn.Module, returned: list[Any], made: list[tuple[Tensor, list[Tensor]]] | None) -> None:
        super().__init__()
        self.__dict__["_layer"] = (layer,)  # in a tuple: not a submodule
        self.__dict__["_returned"] = returned
        self.__dict__["_made"] = made

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_layer"][0], name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        made, value = self.__dict__["_made"], self.__dict__["_returned"][0]
        given = (*args, *kwargs.values())
        if made and any(a is made[-1][0] for a in given):
            before, alike = made[-1]
            if any(known is value for known in alike):  # asking tensors for their shapes takes long in a trace
                return before
            if isinstance(value, Tensor) and (value.shape, value.dtype) == (before.shape, before.dtype):
                alike.append(value)
                return before
        x = next(a for a in given if isinstance(a, Tensor) and a.is_floating_point())
        out = _like(value, x)
        if made is not None and isinstance(out, Tensor):
            made.append((out, [value]))
        return out


def _note_result(first: nn.Module) -> list[Any]:
    """Patch the forward of ``first``; what it returns is in the list after it ran."""
    original = first.forward
    returned: list[Any] = []

    def run(*args: Any, **kwargs: Any) -> Any:
        out = original(*args, **kwargs)
        returned[:] = [out]
        return out

    first.forward = run
    return returned


def _like(value: Any, x: Tensor) -> Any:
    """``value`` with every tensor replaced by the opaque op's result on ``x``."""
    if isinstance(value, Tensor):
        return repeated_layer(x, list(value.shape), value.dtype)
    if isinstance(value, (tuple, list)):
        return type(value)(_like(v, x) for v in value)
    return value
