"""Where every parameter goes: a placement per dim of its submesh, without torch."""

from dataclasses import dataclass, replace
from typing import Literal

from autoshard.errors import InvalidInputError
from autoshard.ir import ExpertsLinear, OpGraph, Param
from autoshard.sharding.degrees import StageMesh
from autoshard.sharding.legality import chosen_options, mesh_of
from autoshard.sharding.option import Option
from autoshard.sharding.padding import PLAIN, Grain, padded_width
from autoshard.sharding.strategy import Strategy
from autoshard.units import dtype_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Placement over one mesh dim: ``replicate``, or ``shard`` of tensor dim ``dim`` in ``packed`` parts alike.

    ``packed`` = 1 is torch's ``Shard(dim)``; more is ``_StridedShard(dim, split_factor=packed)``: each of the parts
    that lie side by side in the dim (gate|up) is split over the ranks. A dim that does not divide is filled up in
    pieces of ``grain``.
    """

    kind: Literal["replicate", "shard"] = "replicate"
    dim: int = 0
    packed: int = 1
    grain: Grain = PLAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class ParamPlacement:
    """A parameter (its FQN in every instance of its block) on a submesh of the stage.

    ``held_by`` = (axis, coordinate) says that only ranks there have it: one expert of a list of modules. Every rank has
    as many of such parameters.
    """

    fqn: str
    shape: tuple[int, ...]
    dtype: str
    mesh_dims: tuple[str, ...]
    placements: tuple[Placement, ...]
    shared_with: str | None = None
    held_by: tuple[str, int] | None = None

    def padded_shape(self, mesh: StageMesh) -> tuple[int, ...]:
        """Shape of the whole with every dim filled up, so that all ranks have parts of one shape."""
        shape = list(self.shape)
        for axis, p in zip(self.mesh_dims, self.placements, strict=True):
            if p.kind == "shard":
                ranks = mesh.size(axis)  # type: ignore[arg-type]
                shape[p.dim] = padded_width(shape[p.dim], ranks, packed=p.packed, grain=p.grain)
        return tuple(shape)

    def local_shape(self, mesh: StageMesh) -> tuple[int, ...]:
        """Shape of one rank's part."""
        shape = list(self.padded_shape(mesh))
        for axis, placement in zip(self.mesh_dims, self.placements, strict=True):
            if placement.kind == "shard":
                shape[placement.dim] //= mesh.size(axis)  # type: ignore[arg-type]
        return tuple(shape)

    def local_bytes(self, mesh: StageMesh) -> int:
        """Bytes of one rank's part; an alias has none. Of what some ranks hold, the first holds as much as any."""
        if self.shared_with is not None or (self.held_by is not None and self.held_by[1] > 0):
            return 0
        count = 1
        for n in self.local_shape(mesh):
            count *= n
        return round(count * dtype_bytes(self.dtype))


def place(param: Param, position: int, option: Option | None, mesh: StageMesh, *, experts: bool) -> ParamPlacement:
    """Placement of the parameter at ``position`` of an op under its option.

    Experts live on (ep, etp), everything else on (dp, tp); a split by kv heads needs (dp, tp_kv, tp_rep) where kv
    heads are copied.
    """
    shardings = () if option is None or position >= len(option.params) else option.params[position]
    dims: tuple[str, ...] = ("ep", "etp") if experts else ("dp", "tp")
    by_axis = {s.axis: s for s in shardings if s.member is None}
    members = [(s.axis, s.member[0] * mesh.size(s.axis) // s.member[1]) for s in shardings if s.member is not None]
    if members:
        dims = tuple(d for d in dims if d != members[0][0])
    if "tp_kv" in by_axis:
        if mesh.size("tp_rep") > 1:
            dims = ("dp", "tp_kv", "tp_rep")
        else:
            by_axis["tp"] = by_axis.pop("tp_kv")
    placements = tuple(
        Placement(kind="shard", dim=s.dim, packed=s.packed, grain=s.grain) if s is not None else Placement()
        for s in (by_axis.get(axis) for axis in dims)  # type: ignore[call-overload]
    )
    return ParamPlacement(
        fqn=param.fqn,
        shape=param.shape,
        dtype=param.dtype,
        mesh_dims=dims,
        placements=placements,
        shared_with=param.shared_with,
        held_by=members[0] if members else None,
    )


def place_all(graph: OpGraph, strategy: Strategy) -> tuple[ParamPlacement, ...]:
    """Placements of every parameter of the model, each exactly once, in graph order."""
    mesh = mesh_of(graph, strategy.degrees)
    chosen = {b.name: chosen_options(graph, b, strategy) for b in graph.components()}
    found = []
    for block, op, instance, param in graph.parameters():
        index = next(i for i, p in enumerate(op.params) if block.fqn(p.fqn, instance) == param.fqn)
        option = chosen[block.name].get(op.name)
        found.append(place(param, index, option, mesh, experts=isinstance(op, ExpertsLinear)))
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class PaddedDim:
    """A dim that a fused op fills up from ``size`` to ``to`` elements, so that the ranks of ``axis`` have as many each.

    Of parts side by side (gate|up) it is each of them.
    """

    dim: str
    size: int
    to: int
    axis: str

    def to_dict(self) -> dict[str, str | int]:
        """As JSON data."""
        return {"dim": self.dim, "from": self.size, "to": self.to, "axis": self.axis}


def paddings(graph: OpGraph, strategy: Strategy) -> dict[str, tuple[PaddedDim, ...]]:
    """What every fused op with weights, and every attention core, fills up under a strategy; ``<block>/<op>`` names it.

    What makes no difference is left out, so that the result is empty where everything divides.
    """
    mesh = mesh_of(graph, strategy.degrees)
    found: dict[str, tuple[PaddedDim, ...]] = {}
    for block in graph.components():
        for name, option in chosen_options(graph, block, strategy).items():
            op, pads = block.op(name), {p.what: p for p in option.pads}
            if not op.params and op.kind not in ("attention", "latent_attention"):
                continue
            dims = []
            for size, axis, what in option.divides:
                to = padded_width(size, mesh.size(axis), grain=pads[what].grain) if what in pads else size
                if to != size:
                    dims.append(PaddedDim(dim=what, size=size, to=int(to), axis=axis))
            if dims:
                found[f"{block.name}/{name}"] = tuple(dims)
    return found


def scale_placement(weight: ParamPlacement, blocks: tuple[int, ...], *, suffix: str = "_scale_inv") -> ParamPlacement:
    """Where the scales of a weight quantised by ``blocks`` (elements per scale and dim) go: with their blocks.

    They have the weight's dims, a scale for every (begun) block, and its placements: a legal shard holds whole blocks.

    Raises:
        InvalidInputError: when a shard of the weight ends inside a block.
    """
    shape = tuple(-(-n // block) for n, block in zip(weight.shape, blocks, strict=True))
    for axis, p in zip(weight.mesh_dims, weight.placements, strict=True):
        if p.kind == "shard" and blocks[p.dim] > 1 and weight.shape[p.dim] // p.packed % blocks[p.dim]:
            raise InvalidInputError(
                f"{weight.fqn}: dim {p.dim} of {weight.shape[p.dim]} in {p.packed} parts is sharded over {axis}, "
                f"but is not made of whole blocks of {blocks[p.dim]}"
            )
    return replace(weight, fqn=weight.fqn + suffix, shape=shape, dtype="float32")
