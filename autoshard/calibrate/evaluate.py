"""Errors of the shipped laws on the rows of a measured table."""

from typing import Any

import numpy as np

from autoshard.calibrate.kinds.kind import TableKind
from autoshard.calibrate.optimise import FloatArray
from autoshard.calibrate.tables import Table
from autoshard.hardware import Cluster


def predict_table(kind: TableKind, table: Table, cluster: Cluster) -> tuple[FloatArray, list[str]]:
    """Predicted seconds of every row, and the group that each belongs to."""
    labels = kind.labels(table)
    found = np.empty(len(table))
    each = np.array(labels)
    for label in dict.fromkeys(labels):
        rows = np.flatnonzero(each == label)
        found[rows] = kind.predict(cluster, table.take(rows), label, None)
    return found, labels


def summary(errors: FloatArray) -> dict[str, Any]:
    """Median and 90th percentile of absolute percentage errors, and how many rows."""
    return {
        "median_ape": float(np.median(errors)),
        "p90_ape": float(np.quantile(errors, 0.9)),
        "rows": len(errors),
    }


def evaluate_table(kind: TableKind, table: Table, cluster: Cluster) -> dict[str, Any]:
    """``median_ape``, ``p90_ape`` (in per cent), ``rows``, and the same ``by`` group.

    Raises:
        InvalidInputError: for cells that make no sense; names the row.
    """
    measured = kind.measured(table)
    predicted, labels = predict_table(kind, table, cluster)
    errors = 100.0 * np.abs(predicted / measured - 1.0)
    each = np.array(labels)
    groups = {str(label): summary(errors[each == label]) for label in sorted(set(labels))}
    return {"kind": kind.name, "device": cluster.device.name, **summary(errors), "by": groups}
