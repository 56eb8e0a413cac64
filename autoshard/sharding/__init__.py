"""Sharding rules: per fused op, the legal choices, what each needs and yields, and the collectives in between.

Read in this order: `layout` (layouts and steps), `degrees` (the mesh), `option` and ``rules/`` (choices per kind of
op), `moe` (dispatch and combine), `flow` (from choices to layouts), `collectives`, `placements` and `stages` (what
follows).
"""

from autoshard.sharding.collectives import Collective, collectives, resolve_graph
from autoshard.sharding.degrees import Degrees, StageMesh, partition, stage_mesh
from autoshard.sharding.flow import ResolvedOp
from autoshard.sharding.layout import Layout, Step
from autoshard.sharding.legality import Reason, degree_reasons, mesh_of, strategy_reasons
from autoshard.sharding.option import Choice, Option
from autoshard.sharding.placements import PaddedDim, ParamPlacement, Placement, paddings, place_all
from autoshard.sharding.stages import (
    Stage,
    handovers,
    layers_per_stage,
    num_microbatches,
    stage_collectives,
    stage_instances,
    stage_placements,
    stages_of,
)
from autoshard.sharding.strategy import DISPATCH, RESIDUAL, Strategy

__all__ = [
    "DISPATCH",
    "RESIDUAL",
    "Choice",
    "Collective",
    "Degrees",
    "Layout",
    "Option",
    "PaddedDim",
    "ParamPlacement",
    "Placement",
    "Reason",
    "ResolvedOp",
    "Stage",
    "StageMesh",
    "Step",
    "Strategy",
    "collectives",
    "degree_reasons",
    "handovers",
    "layers_per_stage",
    "mesh_of",
    "num_microbatches",
    "paddings",
    "partition",
    "place_all",
    "resolve_graph",
    "stage_collectives",
    "stage_instances",
    "stage_mesh",
    "stage_placements",
    "stages_of",
    "strategy_reasons",
]
