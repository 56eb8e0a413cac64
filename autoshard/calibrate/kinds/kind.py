"""What a kind of measured table is to the commands: columns, groups with one law each, predictions, a split."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from autoshard.calibrate.optimise import FloatArray, Parameter
from autoshard.calibrate.tables import BoolArray, Table
from autoshard.cost.kernels import kernel_law
from autoshard.hardware import Cluster
from autoshard.units import US

__all__ = ["TableKind", "framework_labels", "kernel_law", "shares"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableKind:
    """One kind of table.

    Attributes:
        name: As ``--kind`` has it.
        file: Stem of the table in a folder (``gemm`` of ``gemm_h100.csv.gz``).
        columns: Columns that a table must have.
        labels: The group of every row; rows of a group share a law.
        predict: Seconds of rows of one group under a law, or under the device's own if None.
        parameters: What to fit for a group.
        base: The law whose fields are replaced by fitted values.
        slot: Where a group's law stands in a device file.
        held_out: Rows that the fit must not see.
        measured: Seconds of every row.
        split: How ``held_out`` chooses, in words.
        weights: Weight of every row in the fit.
        cauchy: Log ratio beyond which a row counts less in the fit.
    """

    name: str
    file: str
    columns: Sequence[str]
    labels: Callable[[Table], list[str]]
    predict: Callable[[Cluster, Table, str, Any], FloatArray]
    parameters: Callable[[str], Sequence[Parameter]]
    base: Callable[[str], Any]
    slot: Callable[[str], tuple[str, ...]]
    held_out: Callable[[Table], BoolArray]
    split: str
    measured: Callable[[Table], FloatArray] = field(default=lambda table: table.positive("time_us") * US)
    weights: Callable[[Table], FloatArray] | None = None
    cauchy: float = 0.08


def framework_labels(table: Table, *columns: str) -> list[str]:
    """``framework/cell/cell`` of every row."""
    words = [table.text("framework", "unknown"), *(table.text(column) for column in columns)]
    return ["/".join(cells) for cells in zip(*words, strict=True)]


def shares(**values: float) -> Mapping[str, float]:
    """Constants of a law that are not fitted."""
    return values
