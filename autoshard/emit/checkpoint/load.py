"""Loading a checkpoint under a plan: check everything, read this rank's shards, then put them in.

Peak memory of a rank above the model on meta: its shard, and `files.BUFFER_BYTES` on the way. Nothing is communicated.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from autoshard.emit.axes import mesh_axes
from autoshard.emit.checkpoint.dequantise import QuantisedTensor, read_stored, with_quantised
from autoshard.emit.checkpoint.files import Reader, StoredTensor, read_folder
from autoshard.emit.checkpoint.pieces import Piece, pieces_of
from autoshard.emit.checkpoint.regions import Overlap, Region, overlaps, region_of
from autoshard.emit.checkpoint.shards import MANIFEST, read_manifest, same_layout, whole_shapes
from autoshard.emit.checkpoint.tensors import described, tensors_of
from autoshard.errors import InvalidInputError, PlanMismatchError, UnsupportedModelError
from autoshard.ir import OpGraph
from autoshard.sharding import Strategy, mesh_of, place_all


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    """What loading did on this rank, in bytes.

    ``shard_bytes`` are the parameters and buffers it now holds, ``read_bytes`` what it read for them, ``moved_bytes``
    the part of its shard that another rank had saved (0 for a checkpoint that was not sharded).
    """

    shard_bytes: int
    read_bytes: int
    moved_bytes: int
    num_files: int


@dataclass(frozen=True, slots=True)
class Checked:
    """A checkpoint that fits a model: pieces of every tensor to load, and of which rank each sharded piece is."""

    pieces: Mapping[str, tuple[Piece, ...]]
    owners: Mapping[Path, int]


def check_weights(
    model: nn.Module, graph: OpGraph, strategy: Strategy, folder: Path, *, cast: bool = False, reshard: bool = False
) -> Checked:
    """Find every tensor of a model (meta or not, sharded or not) in a checkpoint; allocates nothing.

    Raises:
        InvalidInputError: for a broken file, a missing or unknown tensor, or another shape or dtype.
        PlanMismatchError: for shards saved under another plan, unless ``reshard``.
    """
    whole = whole_shapes(graph, strategy)
    wanted = {name: (whole.get(name, shape), dtype) for name, (shape, dtype) in described(model).items()}
    shapes = {name: shape for name, (shape, _) in wanted.items()}
    owners: dict[Path, int] = {}
    if (folder / MANIFEST).is_file():
        manifest = read_manifest(folder)
        difference = same_layout(manifest, graph, strategy)
        if difference is not None and not reshard:
            raise PlanMismatchError(f"{folder} was saved under another plan ({difference}); load it with reshard=True")
        pieces, owners = manifest.pieces, manifest.owners
        for name in pieces:
            if name not in shapes or sum_shape(pieces[name]) != shapes[name]:
                raise InvalidInputError(f"{folder} has a tensor {name} that is not in the model, or of another shape")
    else:
        pieces = pieces_of(model, with_quantised(read_folder(folder), folder), shapes)
    for prefix, module in model.named_modules():
        if (waiting := _waiting(module)) and not hasattr(model, "_init_weights"):
            raise UnsupportedModelError(
                f"buffer {prefix}.{waiting[0]} is in no checkpoint and still on the meta device; build the model with"
                " its buffers on a real device"
            )
    tied, planned = _tied(graph), {p.fqn for p in place_all(graph, strategy)}
    for name, (shape, dtype) in wanted.items():
        if name not in pieces:
            if any(other in pieces for other in tied.get(name, ())):
                continue
            raise InvalidInputError(f"{folder} has no tensor for {name} {shape}")
        for piece in pieces[name]:
            _check_dtype(piece.stored, name, dtype, cast or name not in planned)
    return Checked(pieces, owners)


def sum_shape(pieces: tuple[Piece, ...]) -> tuple[int, ...]:
    """Shape that pieces span."""
    return tuple(max(b for p in pieces for _, b in p.region.dims[d]) for d in range(len(pieces[0].region.dims)))


def _check_dtype(stored: StoredTensor, name: str, dtype: torch.dtype, cast: bool) -> None:
    have = stored.dtype
    if have == dtype or (isinstance(stored, QuantisedTensor) and dtype.is_floating_point):
        return
    shown = str(have).removeprefix("torch.")
    where = f"{stored.path}: {stored.name} is {shown}, the model has {name} in {str(dtype).removeprefix('torch.')}"
    if (
        not isinstance(have, torch.dtype)
        or have.itemsize < 2
        or not (have.is_floating_point and dtype.is_floating_point)
    ):
        raise InvalidInputError(f"{where}; quantised weights are not converted")
    if not cast:
        raise InvalidInputError(f"{where}; build the model in {shown}, or load with cast=True")


def load_weights(
    model: nn.Module,
    graph: OpGraph,
    strategy: Strategy,
    mesh: DeviceMesh,
    folder: Path,
    *,
    cast: bool = False,
    reshard: bool = False,
    checked: Checked | None = None,
) -> LoadReport:
    """Fill a model that the plan was applied to; on an error it is left as it was.

    Raises:
        As `check_weights`, and UnsupportedModelError for a buffer that neither checkpoint nor model can give.
    """
    found = checked or check_weights(model, graph, strategy, folder, cast=cast, reshard=reshard)
    stage = mesh_of(graph, strategy.degrees)
    coordinates = {str(axis): a.coordinate for axis, a in mesh_axes(mesh, stage).items()}
    placed = {p.fqn: p for p in place_all(graph, strategy)}
    padded = whole_shapes(graph, strategy)
    wanted = tensors_of(model)
    loaded: dict[str, Tensor] = {}
    rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
    moved = 0
    with Reader() as reader:
        for name, pieces in _own(model, graph, found.pieces).items():
            whole = wanted[name]
            region = Region.whole(tuple(whole.shape))
            if name in placed:
                if not isinstance(whole, DTensor):
                    raise PlanMismatchError("the plan was not applied to this model; call plan.apply first")
                shape = padded.get(name, tuple(whole.shape))
                region = region_of(replace(placed[name], shape=shape), stage, coordinates)
            stored = pieces[0].stored.dtype
            # A buffer is not planned for: it keeps the checkpoint's dtype.
            dtype = whole.dtype if name in placed or not isinstance(stored, torch.dtype) else stored
            new = torch.zeros if name in padded else torch.empty
            local = new(region.shape, dtype=dtype, device=mesh.device_type)
            for piece in pieces:
                for box in overlaps(piece.region, region):
                    inside = (_inner(box), local[box.target[0]]) if piece.expert else (box, local)
                    read_stored(reader, piece.stored, *inside)
                    if found.owners.get(piece.stored.path, rank) != rank:
                        moved += _numel(box) * local.element_size()
            loaded[name] = local
    _put_in(model, loaded, mesh.device_type)
    return LoadReport(
        shard_bytes=sum(t.numel() * t.element_size() for t in loaded.values()),
        read_bytes=reader.num_bytes,
        moved_bytes=moved,
        num_files=len({p.stored.path for pieces in found.pieces.values() for p in pieces}),
    )


def _inner(box: Overlap) -> Overlap:
    """A box of one expert's own tensor, without the dim it is stacked on."""
    return Overlap(box.source[1:], box.target[1:], box.shape[1:])


def _numel(box: Overlap) -> int:
    count = 1
    for n in box.shape:
        count *= n
    return count


def _tied(graph: OpGraph) -> dict[str, tuple[str, ...]]:
    """Other names of the same parameter."""
    groups: dict[str, list[str]] = {}
    for _, _, _, p in graph.parameters():
        groups.setdefault(p.shared_with or p.fqn, []).append(p.fqn)
    return {n: tuple(o for o in group if o != n) for group in groups.values() for n in group if len(group) > 1}


def _own(model: nn.Module, graph: OpGraph, pieces: Mapping[str, tuple[Piece, ...]]) -> dict[str, tuple[Piece, ...]]:
    """Pieces of what this rank's stage holds; where a tied name is stored only, of the parameter that is here."""
    here = tensors_of(model)
    found = {name: pieces[name] for name in here if name in pieces}
    for name, others in _tied(graph).items():
        if name in here and not any(n in found for n in (name, *others)):
            found[name] = next(pieces[o] for o in others if o in pieces)
    return found


def _put_in(model: nn.Module, loaded: Mapping[str, Tensor], device: str) -> None:
    """Give the model its tensors; tied parameters stay one; computed buffers are computed."""
    fresh: dict[int, nn.Parameter] = {}
    later: list[tuple[nn.Module, str, int]] = []
    owners = {name: module for name, module in model.named_modules()}
    _recompute(model, device)
    for prefix, module in owners.items():
        dot = f"{prefix}." if prefix else ""
        for name, p in module._parameters.items():
            if p is None:
                continue
            local = loaded.get(dot + name)
            if local is None:
                later.append((module, name, id(p)))
                continue
            value: Tensor = local
            if isinstance(p.data, DTensor):
                value = DTensor.from_local(
                    local, p.data.device_mesh, p.data.placements, run_check=False, shape=p.shape, stride=p.stride()
                )
            fresh.setdefault(id(p), nn.Parameter(value, requires_grad=False))
            module._parameters[name] = fresh[id(p)]
        for name in module._buffers:
            if dot + name in loaded:
                module._buffers[name] = loaded[dot + name]
    for module, name, key in later:
        module._parameters[name] = fresh[key]


def _waiting(module: nn.Module) -> list[str]:
    """Buffers that no checkpoint has and that hold no values yet."""
    kept = module._non_persistent_buffers_set
    return [n for n, b in module._buffers.items() if n in kept and b is not None and b.is_meta]


def _recompute(model: nn.Module, device: str) -> None:
    """Buffers that no checkpoint has (rotary frequencies) and that are still on meta: the model's own values.

    transformers' models compute them in ``_init_weights``.
    """
    for prefix, module in model.named_modules():
        waiting = _waiting(module)
        for name in waiting:
            buffer = module._buffers[name]
            assert buffer is not None
            module._buffers[name] = torch.full_like(buffer, float("nan"), device=device)
        if waiting:
            model._init_weights(module)  # type: ignore[operator]  # check_weights saw that there is one
        empty = next((n for n in waiting if bool(torch.isnan(module._buffers[n]).any())), None)
        if empty is not None:
            raise UnsupportedModelError(
                f"buffer {prefix}.{empty} is in no checkpoint and the model does not compute it"
            )
