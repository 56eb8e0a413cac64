"""Measured serving runs against the serving law: rows, the two passes of each, fits that leave one model out, choices.

Read `rows`, then `passes`, `fit`, `choice` and `evaluate`.
"""

from autoshard.calibrate.serving.evaluate import evaluate_serving
from autoshard.calibrate.serving.rows import COLUMNS

__all__ = ["COLUMNS", "evaluate_serving"]
