"""The plan as people use it: placements as torch's, ``device_mesh`` and ``apply``, ``save`` and ``load``."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.placement_types import Placement

from autoshard import emit
from autoshard.emit.checkpoint import LoadReport, check_weights, distributed_state, load_weights, save_sharded
from autoshard.ir import OpGraph
from autoshard.plan import PlanData, Predicted, file
from autoshard.sharding import Degrees, Strategy, mesh_of, place_all


@dataclass(frozen=True, slots=True)
class Submesh:
    """A named submesh of a plan: mesh dim names and their sizes."""

    mesh_dim_names: tuple[str, ...]
    shape: tuple[int, ...]


class Plan:
    """A sharding plan.

    Attributes:
        data: The plan file's content.
        placements: Torch placements of every parameter, one per dim of ``mesh_for`` its name.
    """

    def __init__(self, data: PlanData) -> None:
        self.data = data
        self._places = {p.fqn: p for p in place_all(data.graph, data.strategy)}
        self.placements: dict[str, tuple[Placement, ...]] = {
            fqn: emit.torch_placements(p) for fqn, p in self._places.items()
        }

    @property
    def strategy(self) -> Strategy:
        """Degrees and choices."""
        return self.data.strategy

    @property
    def degrees(self) -> Degrees:
        """Degrees and batch."""
        return self.data.strategy.degrees

    @property
    def predicted(self) -> Predicted:
        """What the simulator predicts."""
        return self.data.predicted

    @property
    def graph(self) -> OpGraph:
        """The traced operator graph."""
        return self.data.graph

    def mesh_for(self, fqn: str) -> Submesh:
        """The named submesh a parameter lives on. Raises KeyError for a name that is no parameter."""
        names = self._places[fqn].mesh_dims
        mesh = mesh_of(self.data.graph, self.degrees)
        return Submesh(names, tuple(mesh.size(name) for name in names))  # type: ignore[arg-type]

    def device_mesh(self, device_type: str = "cuda") -> DeviceMesh:
        """The mesh of one replica over the ranks of the process group (started by the caller, e.g. torchrun).

        Raises:
            PlanMismatchError: when the world is not pp * dp * tp ranks.
        """
        return emit.device_mesh(self.data.graph, self.degrees, device_type)

    def apply(
        self,
        model: torch.nn.Module,
        mesh: DeviceMesh,
        checkpoint: str | os.PathLike[str] | None = None,
        *,
        cast: bool = False,
        logits_on: Literal["last", "all"] = "last",
    ) -> torch.nn.Module:
        """Shard a model in place: DTensor parameters, and forwards that move activations as planned.

        The model is then called as before, on every rank with the same arguments (every dp rank with its own
        sequences). With pp > 1 a rank keeps the layers of its stage only, and logits come out on the last stage;
        elsewhere they are None, unless ``logits_on="all"`` has them broadcast.

        Args:
            model: On any device; on meta it takes no memory, and ``checkpoint`` fills it.
            mesh: Of `device_mesh`.
            checkpoint: Folder of safetensors of which this rank reads its shards, checked before the model is touched.
            cast: Whether the checkpoint may have another floating dtype than the model.
            logits_on: Stages that return logits.

        Raises:
            PlanMismatchError: when the model's parameters are not those planned for.
            InvalidInputError: for a checkpoint that does not fit the model (see `load_weights`).
        """
        if checkpoint is None:
            return emit.apply(model, self.data.graph, self.strategy, mesh, logits_on=logits_on)
        folder = Path(checkpoint)
        checked = check_weights(model, self.data.graph, self.strategy, folder, cast=cast)
        applied = emit.apply(model, self.data.graph, self.strategy, mesh, logits_on=logits_on)
        load_weights(applied, self.data.graph, self.strategy, mesh, folder, checked=checked)
        return applied

    def load_weights(
        self,
        model: torch.nn.Module,
        mesh: DeviceMesh,
        checkpoint: str | os.PathLike[str],
        *,
        cast: bool = False,
        reshard: bool = False,
    ) -> LoadReport:
        """Fill a model that this plan was applied to with this rank's shards of a checkpoint.

        The checkpoint is a folder of safetensors as transformers writes them (older forms with one tensor per expert
        too), or one of `save_sharded`. Beyond its shard a rank needs one read buffer (16 MiB). On any error the model
        is left as it was.

        Args:
            model: Sharded, on meta or not.
            mesh: Of `device_mesh`.
            checkpoint: The folder.
            cast: Whether floating dtypes are converted to the model's.
            reshard: Whether shards of another plan or world size may be loaded; the report says how much was moved.

        Raises:
            InvalidInputError: for a missing, truncated, unknown or mismatching tensor or file.
            PlanMismatchError: for shards of another plan without ``reshard``, or a model the plan was not applied to.
        """
        folder = Path(checkpoint)
        return load_weights(model, self.data.graph, self.strategy, mesh, folder, cast=cast, reshard=reshard)

    def save_sharded(self, model: torch.nn.Module, folder: str | os.PathLike[str]) -> int:
        """Write a sharded model: every rank its parts as safetensors, one manifest; returns this rank's bytes.

        Every rank calls it. A part that several ranks hold is written once.

        Raises:
            PlanMismatchError: when the plan was not applied to the model.
            InvalidInputError: when the folder cannot be written to.
        """
        return save_sharded(model, self.data.graph, self.strategy, Path(folder))

    def state_dict(self, model: torch.nn.Module) -> dict[str, torch.Tensor]:
        """The sharded model's tensors for ``torch.distributed.checkpoint``; what is loaded into them is in the model.

        Parts side by side (gate|up) are shown as a dim of their own, since torch's checkpoints take shards to be
        boxes. Shapes do not depend on the plan: what one plan saved, another can load.

        Raises:
            PlanMismatchError: when the plan was not applied to the model, or fills up heads.
        """
        return distributed_state(model, self.data.graph, self.strategy)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan file."""
        file.save(self.data, path)

    @staticmethod
    def load(path: str | os.PathLike[str]) -> "Plan":
        """Read a plan file; nothing in it is executed."""
        return Plan(file.load(path))

    def to_dict(self) -> dict[str, Any]:
        """The plan file's content as JSON data."""
        return self.data.model_dump(mode="json", by_alias=True)

    def __repr__(self) -> str:
        """One line: model, cluster, degrees, rate."""
        d = self.degrees
        return (
            f"Plan({self.data.model.name} on {self.data.cluster.name}: pp={d.pp} dp={d.dp} tp={d.tp} ep={d.ep}"
            f" etp={d.etp} batch={d.batch} x{d.replicas},"
            f" {self.predicted.tokens_per_s_per_gpu:.1f} tokens/s/GPU predicted)"
        )
