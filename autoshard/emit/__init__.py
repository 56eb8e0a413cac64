"""Emission: a strategy on a live PyTorch model. Read `axes` (the mesh), `steps` (a call each), then `application`."""

from autoshard.emit.application import apply
from autoshard.emit.axes import device_mesh, submesh
from autoshard.emit.parameters import torch_placements
from autoshard.emit.pipeline import pipeline_stage

__all__ = ["apply", "device_mesh", "pipeline_stage", "submesh", "torch_placements"]
