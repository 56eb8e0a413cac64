"""The plan file: JSON of schema ``autoshard.plan/1``, checked when read, deterministic when written.

It holds what was planned for what (model structure, cluster, workload), the strategy, everything that follows from it
(mesh, placement of every parameter, layouts and collectives of every fused op, stages), the predictions by term and how
the search found it. It holds no timings, dates or code; reading one executes nothing.
"""

from dataclasses import fields
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from autoshard.ir import OpGraph
from autoshard.sharding import Degrees, Strategy
from autoshard.workload import Workload

SCHEMA = "autoshard.plan/1"
Count = Annotated[int, Field(ge=0)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]


Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]


def _whole_degrees(degrees: dict[str, int]) -> dict[str, int]:
    """Degrees as they are if they are some."""
    wanted = [f.name for f in fields(Degrees)]
    if sorted(degrees) != sorted(wanted):
        raise ValueError(f"degrees are {', '.join(wanted)}, not {', '.join(degrees) or 'none'}")
    Degrees(**degrees)
    return degrees


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ModelIdentity(_Part):
    """Which model: its name and class, how many parameters, the hash of its structure, and where it came from.

    ``source`` is what `autoshard.tracing.ModelSource` needs to build it again (data only); None for a live module.
    """

    name: str
    class_name: str
    parameters: Count
    active_parameters: Count
    structural_hash: str
    source: dict[str, Any] | None = None


class ClusterIdentity(_Part):
    """Which cluster: enough to say what the prediction is for."""

    name: str
    device: str
    num_devices: Annotated[int, Field(ge=1)]
    devices_per_node: Annotated[int, Field(ge=1)]
    memory_bytes: Amount


class MeshLayout(_Part):
    """The device mesh of one replica: ``pp`` and the refined dims of a stage, outermost first, and views of them."""

    dims: tuple[tuple[str, int], ...]
    views: dict[str, tuple[str, ...]]


class PlannedParameter(_Part):
    """A parameter on its submesh; placements read ``R``, ``S(dim)`` or ``S(dim, parts=n)``, one per mesh dim."""

    mesh: tuple[str, ...]
    placements: tuple[str, ...]


class PlannedCollective(_Part):
    """A collective of one forward pass at the workload's tokens: payload bytes per call, and how many calls."""

    kind: str
    axis: str
    group_size: int
    num_bytes: Count
    count: Count


class PlannedHandover(PlannedCollective):
    """The residual that every rank of a stage sends to its counterpart in the next: bytes of one microbatch."""

    from_stage: Count
    to_stage: Count


class PlannedOp(_Part):
    """A fused op: its choice, layouts in and out over its axis, and the collectives it causes."""

    name: str
    kind: str
    module: str
    choice: int | None
    needs: tuple[str, ...]
    yields: str
    delivered: str
    collectives: tuple[PlannedCollective, ...]


class PlannedPadding(_Part):
    """A dim that is filled up with zeros, so that the ranks of ``axis`` have as many elements each."""

    dim: str
    from_: Annotated[int, Field(ge=1, alias="from")]
    to: Annotated[int, Field(ge=1)]
    axis: str

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class MemoryBytes(_Part):
    """Predicted bytes of the fullest rank."""

    weights: Amount
    kv: Amount
    activations: Amount
    workspace: Amount
    total: Amount


class PredictedTerm(_Part):
    """Part of the step's time."""

    part: str
    label: str
    what: str
    seconds: Amount


class Predicted(_Part):
    """What the simulator says. Never measured. ``tokens_per_s_per_gpu`` divides by every device of the cluster.

    ``two_batch`` says whether the step runs as two halves; None where that effect was not asked for.
    """

    tokens_per_s: Rate
    tokens_per_s_per_gpu: Rate
    tokens_per_s_per_used_gpu: Amount
    tokens_per_s_per_user: Amount | None
    tpot_s: Amount | None
    ttft_s: Amount | None
    step_s: Amount
    memory_bytes: MemoryBytes
    two_batch: bool | None = None
    terms: tuple[PredictedTerm, ...]


class SearchRecord(_Part):
    """How the plan was found. ``found_*`` is what the algorithm reached by itself, ``exact_*`` the proven optimum.

    With ``exact_is_bound`` (mixed serving, or effects) ``exact_*`` is what no strategy exceeds, reached by none known.
    ``balanced_gain`` is the share by which the plan's stages, balanced after the search, beat the even partition, to
    which all rates here belong; None where they were not.
    """

    algorithm: str
    seed: int
    budget: int
    calls: Count
    found_tokens_per_s_per_gpu: Amount
    exact_tokens_per_s_per_gpu: Amount | None
    regret_to_exact: Amount | None
    rl_regret: Amount | None
    exact_is_bound: bool = False
    taken_from: Literal["search", "exact"]
    balanced_gain: Amount | None = None
    num_points: Count
    num_strategies: str


class Alternative(_Part):
    """Another degree point at its best choices; ``degrees`` are those of `Degrees`, all of them."""

    degrees: Annotated[dict[str, int], AfterValidator(_whole_degrees)]
    tokens_per_s_per_gpu: Amount
    relative: Amount


class PlanData(_Part):
    """A whole plan file.

    ``held_by`` names, for parameters that not every rank has a part of (experts that are modules of their own), the
    mesh axis and the coordinate of the ranks that have it.
    """

    schema_: Literal["autoshard.plan/1"] = Field(default="autoshard.plan/1", alias="schema")
    versions: dict[str, str]
    model: ModelIdentity
    cluster: ClusterIdentity
    workload: Workload
    strategy: Strategy
    mesh: MeshLayout
    stages: tuple[int, ...]
    handovers: tuple[PlannedHandover, ...]
    ops: dict[str, tuple[PlannedOp, ...]]
    parameters: dict[str, PlannedParameter]
    padding: dict[str, tuple[PlannedPadding, ...]] = {}
    held_by: dict[str, tuple[str, Count]] = {}
    predicted: Predicted
    binding: tuple[str, ...]
    search: SearchRecord
    alternatives: tuple[Alternative, ...]
    graph: OpGraph

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    @property
    def degrees(self) -> Degrees:
        """Degrees of the strategy."""
        return self.strategy.degrees
