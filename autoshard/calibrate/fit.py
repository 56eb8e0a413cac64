"""Fits the laws of every group of every table of a folder, and says how they hold on rows that it left out."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from autoshard.calibrate.evaluate import summary
from autoshard.calibrate.kinds import KINDS
from autoshard.calibrate.kinds.kind import TableKind
from autoshard.calibrate.optimise import FloatArray, fit_positive
from autoshard.calibrate.tables import Table, read_table
from autoshard.errors import InvalidInputError
from autoshard.hardware import Cluster

_FEWEST_ROWS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedGroup:
    """One law: where it stands in a device file, and its errors (``median_ape``, ``p90_ape``, ``rows``)."""

    kind: str
    label: str
    slot: tuple[str, ...]
    law: Any
    held_out: dict[str, Any] | None
    fitted: dict[str, Any]


def table_path(folder: Path, kind: TableKind) -> Path | None:
    """The table of a kind in a folder (``gemm_h100.csv.gz``, ``gemm.csv``), or None."""
    found = sorted([*folder.glob(f"{kind.file}_*.csv*"), *folder.glob(f"{kind.file}.csv*")])
    usable = [path for path in found if "published" not in path.name]
    return usable[0] if usable else None


def fit_folder(folder: Path, cluster: Cluster, progress: Callable[[str], None] = lambda _: None) -> list[FittedGroup]:
    """Fit everything that ``folder`` has tables of.

    Raises:
        InvalidInputError: for a folder without tables, or a table that cannot be read.
    """
    found: list[FittedGroup] = []
    for kind in KINDS.values():
        path = table_path(folder, kind)
        if path is not None:
            progress(f"fitting {kind.name}")
            found.extend(fit_table(kind, read_table(path, kind.columns), cluster))
    if not found:
        wanted = ", ".join(f"{kind.file}_*.csv.gz" for kind in KINDS.values())
        raise InvalidInputError(f"no measured tables in {folder}: looked for {wanted}")
    return found


def fit_table(kind: TableKind, table: Table, cluster: Cluster) -> Iterator[FittedGroup]:
    """Fit the groups of one table; a group without a held-out row is fitted on all of its rows."""
    labels = np.array(kind.labels(table))
    measured, out = kind.measured(table), kind.held_out(table)
    for label in sorted(set(labels.tolist())):
        rows = np.flatnonzero(labels == label)
        if len(rows) < _FEWEST_ROWS:
            continue
        unseen = out[rows]
        if unseen.all():
            unseen = np.zeros(len(rows), dtype=bool)
        law = _fit_group(kind, table.take(rows[~unseen]), label, cluster, measured[rows[~unseen]])
        errors = 100.0 * np.abs(kind.predict(cluster, table.take(rows), label, law) / measured[rows] - 1.0)
        yield FittedGroup(
            kind=kind.name,
            label=label,
            slot=kind.slot(label),
            law=replace(law, source=_source(table, label, kind, errors[unseen])),
            held_out=summary(errors[unseen]) if unseen.any() else None,
            fitted=summary(errors[~unseen]),
        )


def _fit_group(kind: TableKind, seen: Table, label: str, cluster: Cluster, measured: FloatArray) -> Any:
    parameters, base = kind.parameters(label), kind.base(label)

    def law_of(values: FloatArray) -> Any:
        return replace(base, **{p.field: float(v) for p, v in zip(parameters, values, strict=True)})

    values = fit_positive(
        lambda at: kind.predict(cluster, seen, label, law_of(at)),
        parameters,
        measured,
        cauchy=kind.cauchy,
        weights=None if kind.weights is None else kind.weights(seen),
    )
    return law_of(values)


def _source(table: Table, label: str, kind: TableKind, unseen: FloatArray) -> str:
    name = table.name.removesuffix(".gz").removesuffix(".csv")
    if not len(unseen):
        return f"[fitted: {name} {label}; no rows left to check]"
    return f"[fitted: {name} {label}; held out {np.median(unseen):.1f} % (n={len(unseen)}), {kind.split}]"
