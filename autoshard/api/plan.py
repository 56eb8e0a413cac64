"""The plan as people use it: placements as torch's, ``device_mesh`` and ``apply``, ``save`` and ``load``."""

import os
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.placement_types import Placement

from autoshard import emit
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
        self, model: torch.nn.Module, mesh: DeviceMesh, *, logits_on: Literal["last", "all"] = "last"
    ) -> torch.nn.Module:
        """Shard a model in place: DTensor parameters, and forwards that move activations as planned.

        The model is then called as before, on every rank with the same arguments (every dp rank with its own
        sequences). With pp > 1 a rank keeps the layers of its stage only, and logits come out on the last stage;
        elsewhere they are None, unless ``logits_on="all"`` has them broadcast.

        Raises:
            PlanMismatchError: when the model's parameters are not those planned for.
        """
        return emit.apply(model, self.data.graph, self.strategy, mesh, logits_on=logits_on)

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
