"""Sharding rules: per fused op, the legal choices, what each needs and yields, and the collectives in between.

Read in this order: `layout` (layouts and steps), `degrees` (the mesh), `option` and ``rules/`` (choices per kind of
op), `moe` (dispatch and combine), `flow` (from choices to layouts), `collectives` and `placements` (what follows).
"""

from autoshard.sharding.collectives import Collective, collectives, resolve_graph
from autoshard.sharding.degrees import Degrees, StageMesh, stage_mesh
from autoshard.sharding.flow import ResolvedOp
from autoshard.sharding.layout import Layout, Step
from autoshard.sharding.legality import Reason, degree_reasons, mesh_of, strategy_reasons
from autoshard.sharding.option import Choice, Option
from autoshard.sharding.placements import ParamPlacement, Placement, place_all
from autoshard.sharding.strategy import DISPATCH, RESIDUAL, Strategy

__all__ = [
    "DISPATCH",
    "RESIDUAL",
    "Choice",
    "Collective",
    "Degrees",
    "Layout",
    "Option",
    "ParamPlacement",
    "Placement",
    "Reason",
    "ResolvedOp",
    "StageMesh",
    "Step",
    "Strategy",
    "collectives",
    "degree_reasons",
    "mesh_of",
    "place_all",
    "resolve_graph",
    "stage_mesh",
    "strategy_reasons",
]
