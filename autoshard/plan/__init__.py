"""Plans as data: the schema of the file, what is derived from a strategy, reading and writing."""

from autoshard.plan.derive import (
    mesh_layout,
    planned_handovers,
    planned_ops,
    planned_padding,
    planned_parameters,
    stages,
    step_tokens,
)
from autoshard.plan.file import check_derived, load, save, to_json
from autoshard.plan.schema import (
    SCHEMA,
    Alternative,
    ClusterIdentity,
    MemoryBytes,
    ModelIdentity,
    PlanData,
    PlannedCollective,
    PlannedHandover,
    PlannedOp,
    PlannedParameter,
    Predicted,
    PredictedTerm,
    SearchRecord,
)

__all__ = [
    "SCHEMA",
    "Alternative",
    "ClusterIdentity",
    "MemoryBytes",
    "ModelIdentity",
    "PlanData",
    "PlannedCollective",
    "PlannedHandover",
    "PlannedOp",
    "PlannedParameter",
    "Predicted",
    "PredictedTerm",
    "SearchRecord",
    "check_derived",
    "load",
    "mesh_layout",
    "planned_handovers",
    "planned_ops",
    "planned_padding",
    "planned_parameters",
    "save",
    "stages",
    "step_tokens",
    "to_json",
]
