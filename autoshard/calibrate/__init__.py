"""Fits the laws of `autoshard.cost` to measured tables, checks them on rows they did not see, and measures devices."""

from autoshard.calibrate.evaluate import evaluate_table, summary
from autoshard.calibrate.fit import fit_folder
from autoshard.calibrate.kinds import KINDS
from autoshard.calibrate.kinds.kind import TableKind
from autoshard.calibrate.tables import Table, read_table

__all__ = ["KINDS", "Table", "TableKind", "evaluate_table", "fit_folder", "read_table", "summary"]
