"""Shards on disk: every rank writes the parts it is the first to hold, one manifest says which part is where.

The manifest (``autoshard.shards.json``) follows from graph and strategy alone, so no rank has to ask another. It holds
for every tensor its shape, dtype and parts: a file, and the region of the whole tensor that the file's tensor is.
"""

import json
import math
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

import torch
import torch.distributed as dist
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from autoshard.emit.checkpoint.files import read_header
from autoshard.emit.checkpoint.pieces import Piece
from autoshard.emit.checkpoint.regions import Region, overlaps, region_of
from autoshard.emit.checkpoint.tensors import described, tensors_of
from autoshard.errors import InvalidInputError, PlanMismatchError
from autoshard.ir import OpGraph
from autoshard.sharding import StageMesh, Strategy, mesh_of, place_all, stages_of
from autoshard.sharding.stages import layer_instances

MANIFEST = "autoshard.shards.json"
Count = Annotated[int, Field(ge=0)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    file: Annotated[str, Field(pattern=r"^[\w.-]+$")]
    region: tuple[tuple[tuple[Count, Count], ...], ...]


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    shape: tuple[Count, ...]
    parts: tuple[_Part, ...]


class _ManifestData(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    schema_: Literal["autoshard.shards/1"] = Field(default="autoshard.shards/1", alias="schema")
    model: str
    degrees: dict[str, int]
    tensors: dict[str, _Entry]


@dataclass(frozen=True, slots=True)
class Manifest:
    """A folder of shards: its data, the pieces of every tensor, and which rank wrote which file."""

    data: _ManifestData
    pieces: dict[str, tuple[Piece, ...]]
    owners: dict[Path, int]


def _file(rank: int) -> str:
    return f"rank-{rank:05d}.safetensors"


def _coordinates(stage: StageMesh, rank: int) -> dict[str, int]:
    """Coordinate of a rank on every axis of its stage: ranks are counted through the mesh dims, the last fastest."""
    on_dim = {}
    for name, size in reversed(stage.dims):
        rank, on_dim[name] = divmod(rank, size)
    sizes = dict(stage.dims)
    found = {}
    for axis, view in stage.views:
        at = 0
        for name in view:
            at = at * sizes[name] + on_dim[name]
        found[str(axis)] = at
    return found


def whole_shapes(graph: OpGraph, strategy: Strategy) -> dict[str, tuple[int, ...]]:
    """The shapes of parameters that the plan fills up, as the model has them: DTensors have them filled up."""
    stage = mesh_of(graph, strategy.degrees)
    return {p.fqn: p.shape for p in place_all(graph, strategy) if p.padded_shape(stage) != p.shape}


def _stage_of(graph: OpGraph, strategy: Strategy) -> Callable[[str], int]:
    """The pipeline stage that saves a tensor: that of its layer, the last for the epilogue's, else the first."""
    layers = [f"{block.instances[instance]}." for block, instance in layer_instances(graph)]
    stages = stages_of(graph, strategy)
    of_layer = {layers[n]: s.index for s in stages for n in range(s.first, s.end)}
    shared = {p.fqn for _, _, _, p in graph.parameters() if p.shared_with is not None}
    last = {f"{p.fqn.rpartition('.')[0]}." for op in graph.epilogue.ops for p in op.params if p.fqn not in shared}

    def find(name: str) -> int:
        layer = next((i for prefix, i in of_layer.items() if name.startswith(prefix)), None)
        if layer is not None:
            return layer
        return stages[-1].index if any(name.startswith(prefix) for prefix in last) else 0

    return find


def describe_shards(graph: OpGraph, strategy: Strategy, whole: dict[str, tuple[int, ...]]) -> _ManifestData:
    """The manifest of a model's tensors (name -> whole shape); what the plan does not place is whole on every rank.

    Ranks are counted stage after stage.
    """
    d = strategy.degrees
    stage = mesh_of(graph, d)
    stage_of = _stage_of(graph, strategy)
    places = [_coordinates(stage, rank) for rank in range(d.group)]
    placed = {p.fqn: p for p in place_all(graph, strategy)}
    tensors = {}
    for name, shape in whole.items():
        first: dict[Region, int] = {}
        before = d.group * stage_of(name)
        for rank, at in enumerate(places if name in placed else places[:1], start=before):
            region, held_by = Region.whole(shape), placed[name].held_by if name in placed else None
            if held_by is not None and at[held_by[0]] != held_by[1]:
                continue
            if name in placed:
                region = region_of(replace(placed[name], shape=shape), stage, at).within(shape)
            first.setdefault(region, rank)
        parts = tuple(_Part(file=_file(rank), region=region.dims) for region, rank in first.items())
        tensors[name] = _Entry(shape=shape, parts=parts)
    degrees = {n: getattr(d, n) for n in ("pp", "dp", "tp", "ep", "etp")}
    return _ManifestData(model=graph.structural_hash(), degrees=degrees, tensors=tensors)


def save_sharded(model: nn.Module, graph: OpGraph, strategy: Strategy, folder: Path) -> int:
    """Write this rank's parts of a sharded model; rank 0 writes the manifest last. Every rank calls this.

    Returns:
        Bytes of tensors that this rank wrote.

    Raises:
        PlanMismatchError: when the plan was not applied to the model.
        InvalidInputError: when the folder cannot be written to.
    """
    from safetensors.torch import save_file

    tensors = tensors_of(model)
    tied = {p.fqn for p in place_all(graph, strategy) if p.shared_with is not None}
    placed = {p.fqn: p for p in place_all(graph, strategy) if p.fqn in tensors}
    unplaced = next((n for n in placed if not isinstance(tensors[n], DTensor)), None)
    if unplaced is not None or not placed:
        raise PlanMismatchError(f"the plan was not applied to this model: {unplaced or 'no parameter'} is no DTensor")
    stage, padded = mesh_of(graph, strategy.degrees), whole_shapes(graph, strategy)
    whole = {name: padded.get(name, shape) for name, (shape, _) in described(model).items() if name not in tied}
    manifest = describe_shards(graph, strategy, whole)
    rank = dist.get_rank() if dist.is_initialized() else 0
    mine: dict[str, Tensor] = {}
    for name, entry in manifest.tensors.items():
        if any(part.file == _file(rank) for part in entry.parts):
            tensor = tensors[name]
            local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
            if name in padded:
                local = _without_padding(local, region_of(placed[name], stage, _coordinates(stage, rank)), padded[name])
            mine[name] = local.contiguous()
    try:
        folder.mkdir(exist_ok=True)
        temporary = folder / f".{_file(rank)}.tmp"
        save_file(mine, temporary)
        temporary.replace(folder / _file(rank))
        if dist.is_initialized():
            dist.barrier()
        if rank == 0:
            text = json.dumps(manifest.model_dump(mode="json", by_alias=True)) + "\n"
            draft = folder / f".{MANIFEST}.tmp"
            draft.write_text(text)
            os.replace(draft, folder / MANIFEST)
        if dist.is_initialized():
            dist.barrier()
    except OSError as error:
        raise InvalidInputError(f"cannot write {folder}: {error.strerror}") from None
    return sum(t.numel() * t.element_size() for t in mine.values())


def _without_padding(local: Tensor, region: Region, shape: tuple[int, ...]) -> Tensor:
    """What of a rank's part lies in the tensor of ``shape``."""
    for dim, runs in enumerate(region.dims):
        starts = [sum(b - a for a, b in runs[:i]) for i in range(len(runs))]
        real = [(at, b - a) for at, (a, b) in zip(starts, runs, strict=True) if b <= shape[dim]]
        local = torch.cat([local.narrow(dim, at, length) for at, length in real], dim)
    return local


def read_manifest(folder: Path) -> Manifest:
    """A folder of shards, its manifest and every file's header checked.

    Raises:
        InvalidInputError: for a broken manifest or file, or parts that do not make up their tensor.
    """
    path = folder / MANIFEST
    try:
        data = _ManifestData.model_validate_json(path.read_text("utf-8"))
    except OSError as error:
        raise InvalidInputError(f"cannot read {path}: {error.strerror}") from None
    except (ValidationError, UnicodeDecodeError) as error:
        first = error.errors()[0]["msg"] if isinstance(error, ValidationError) else "not text"
        raise InvalidInputError(f"{path} is no manifest of shards: {first}") from None
    headers = {f: read_header(folder / f) for f in sorted({p.file for e in data.tensors.values() for p in e.parts})}
    pieces: dict[str, tuple[Piece, ...]] = {}
    for name, entry in data.tensors.items():
        found = []
        for part in entry.parts:
            stored, region = headers[part.file].get(name), Region(part.region)
            if stored is None or stored.shape != region.shape:
                have = "missing" if stored is None else stored.shape
                raise InvalidInputError(f"{folder / part.file}: {name} is {have}, {MANIFEST} says {region.shape}")
            found.append(Piece(stored, region))
        if not covered(entry.shape, tuple(p.region for p in found)):
            raise InvalidInputError(f"{path}: the parts of {name} do not make up {entry.shape}")
        pieces[name] = tuple(found)
    numbers = {f: re.fullmatch(r"rank-(\d+)\.safetensors", f) for f in headers}
    owners = {folder / f: int(match[1]) for f, match in numbers.items() if match}
    return Manifest(data, pieces, owners)


@cache
def covered(shape: tuple[int, ...], regions: tuple[Region, ...]) -> bool:
    """Whether regions make up a tensor of ``shape``: each inside it, none overlapping, together all of it."""
    for region in regions:
        if len(region.dims) != len(shape):
            return False
        for runs, n in zip(region.dims, shape, strict=True):
            ends = [0, *(end for run in runs for end in run), n]
            if ends != sorted(ends):
                return False
    apart = all(next(overlaps(p, q), None) is None for i, p in enumerate(regions) for q in regions[:i])
    return apart and sum(region.numel for region in regions) == math.prod(shape)


def same_layout(manifest: Manifest, graph: OpGraph, strategy: Strategy) -> str | None:
    """How the shards' layout differs from that of a plan, None if it does not."""
    if manifest.data.model != graph.structural_hash():
        return "of another model"
    expected = describe_shards(graph, strategy, {n: e.shape for n, e in manifest.data.tensors.items()})
    if expected.degrees != manifest.data.degrees:
        have = " ".join(f"{k}={v}" for k, v in manifest.data.degrees.items())
        want = " ".join(f"{k}={v}" for k, v in expected.degrees.items())
        return f"{have}, not {want}"
    other = next((n for n, e in expected.tensors.items() if e != manifest.data.tensors[n]), None)
    return None if other is None else f"{other} is split differently"
