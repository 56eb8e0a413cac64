"""Exports: a plan in the words of another program. Read `target` (what a target is), then one of the targets.

A target says which strategies it can express (`Target.reasons`), which it would run at given degrees
(`Target.strategy`), and writes one down (`Target.write`). What it cannot express is refused with the reason.
"""

from autoshard.export.artifact import Export, ExportedFile, save
from autoshard.export.target import Target
from autoshard.export.targets import TARGETS

__all__ = ["TARGETS", "Export", "ExportedFile", "Target", "save"]
