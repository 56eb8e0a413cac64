"""From the tensors of a checkpoint to parts of the model's parameters: renamed, stacked, side by side.

transformers renames and merges old checkpoints when it loads them (per-expert matrices become one stacked tensor,
``w1`` and ``w3`` its two halves). The rules are read from transformers itself (`get_model_conversion_mapping`, 5.24),
and those that only place tensors in a larger one are turned round: a parameter is a set of pieces, each a stored
tensor and the region of the parameter it fills. Rules that compute are refused.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from autoshard.emit.checkpoint.files import StoredTensor
from autoshard.emit.checkpoint.regions import Region
from autoshard.errors import InvalidInputError

_COMPUTED = (r"rotary_emb\.inv_freq",)
"""Tensors that old checkpoints have and models of today compute [transformers 5.24, ``modeling_utils``]."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A stored tensor, and the region of the parameter that it fills; ``expert`` if it is one slice of dim 0."""

    stored: StoredTensor
    region: Region
    expert: bool = False


@dataclass(frozen=True, slots=True)
class Source:
    """A stored tensor under the name it gets: which part of several side by side it is, and which expert."""

    stored: StoredTensor
    part: int
    num_parts: int
    concatenate: int
    expert: int | None


def pieces_of(
    model: nn.Module, stored: Mapping[str, StoredTensor], shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, tuple[Piece, ...]]:
    """Pieces of every tensor in ``shapes`` that the checkpoint has, by the model's names.

    Raises:
        InvalidInputError: for a tensor that belongs nowhere, or pieces that do not make up a parameter.
    """
    named: dict[str, list[Source]] = {}
    known = getattr(model, "_keys_to_ignore_on_load_unexpected", None) or ()
    ignored = [re.compile(p) for p in (*known, *_COMPUTED)]
    rename = _renaming(model, shapes)
    for key, tensor in stored.items():
        name, source = rename(key, tensor)
        if name in shapes:
            named.setdefault(name, []).append(source)
        elif not any(p.search(name) for p in ignored):
            raise InvalidInputError(f"{tensor.path} has a tensor {key} {tensor.shape} that the model has no place for")
    return {name: assemble(name, shapes[name], sources) for name, sources in named.items()}


def _renaming(model: nn.Module, shapes: Mapping[str, tuple[int, ...]]) -> Any:
    """The function (stored name, tensor) -> (model's name, source) of a model."""
    if not hasattr(model, "base_model_prefix"):
        return lambda key, tensor: (key, Source(tensor, 0, 1, 0, None))
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter, rename_source_key

    rules = get_model_conversion_mapping(model)
    converters = [r for r in rules if isinstance(r, WeightConverter)]
    renamings = [r for r in rules if not isinstance(r, WeightConverter)]
    names = {name: True for name in shapes}

    def rename(key: str, tensor: StoredTensor) -> tuple[str, Source]:
        if key in shapes:  # what transformers of today writes needs no rule
            return key, Source(tensor, 0, 1, 0, None)
        name, pattern = rename_source_key(key, renamings, converters, model.base_model_prefix, names)
        if pattern is None:
            return name, Source(tensor, 0, 1, 0, None)
        converter = next(c for c in converters if pattern in c.source_patterns)
        return name, _converted(converter, pattern, key, tensor)

    return rename


def _converted(converter: Any, pattern: str, key: str, tensor: StoredTensor) -> Source:
    """Where a rule puts a tensor; refuses rules that do more than stack and set side by side."""
    kinds = [type(op).__name__ for op in converter.operations]
    dims = {type(op).__name__: getattr(op, "dim", 0) for op in converter.operations}
    known = kinds in (["MergeModulelist"], ["MergeModulelist", "Concatenate"], ["Concatenate"])
    if not known or len(converter.target_patterns) != 1 or dims.get("MergeModulelist", 0) != 0:
        raise InvalidInputError(
            f"{tensor.path}: {key} is stored in an older form whose conversion ({', '.join(kinds)}) cannot be sliced;"
            " save the checkpoint anew with transformers 5"
        )
    expert = None
    if "MergeModulelist" in kinds:
        lead = pattern[: pattern.index("*")].lstrip("^").rpartition(".")[0].rpartition(".")[2] or "experts"
        numbers = re.findall(rf"\.{re.escape(lead)}\.(\d+)\.", "." + key) or re.findall(r"\.(\d+)\.", key)[-1:]
        expert = int(numbers[-1])
    patterns = list(converter.source_patterns)
    return Source(tensor, patterns.index(pattern), len(patterns), dims.get("Concatenate", 0), expert)


def assemble(name: str, shape: tuple[int, ...], sources: list[Source]) -> tuple[Piece, ...]:
    """Pieces that fill a parameter exactly."""
    if len(sources) == 1 and sources[0].expert is None and sources[0].num_parts == 1:
        only = sources[0].stored
        if only.shape != shape:
            raise InvalidInputError(f"{only.path}: {only.name} is {only.shape}, the plan has {name} as {shape}")
        return (Piece(only, Region.whole(shape)),)
    pieces, filled = [], 0
    following: dict[int | None, tuple[int, int]] = {}  # of every expert: the next part, and where it starts
    for s in sorted(sources, key=lambda s: (s.expert or 0, s.part)):
        inner = s.stored.shape if s.expert is None else (1, *s.stored.shape)
        region = [(0, n) for n in inner]
        if len(inner) != len(shape):
            raise InvalidInputError(f"{s.stored.path}: {s.stored.name} is {s.stored.shape}, no part of {name} {shape}")
        if s.expert is not None:
            region[0] = (s.expert, s.expert + 1)
        part, start = following.get(s.expert, (0, 0))
        if part != s.part:
            raise InvalidInputError(f"{s.stored.path}: the part before {s.stored.name} of {name} {shape} is missing")
        if s.num_parts > 1:
            region[s.concatenate] = (start, start + inner[s.concatenate])
        following[s.expert] = (part + 1, start + inner[s.concatenate])
        if any(b > n for (_, b), n in zip(region, shape, strict=True)):
            raise InvalidInputError(f"{s.stored.path}: {s.stored.name} {s.stored.shape} lies outside of {name} {shape}")
        pieces.append(Piece(s.stored, Region(tuple((run,) for run in region)), expert=s.expert is not None))
        filled += pieces[-1].region.numel
    keys = {p.region.dims for p in pieces}
    whole = Region.whole(shape).numel
    if filled != whole or len(keys) != len(pieces):
        raise InvalidInputError(f"the checkpoint has {filled} of the {whole} elements of {name} {shape}")
    return tuple(pieces)
