"""Measured tables: CSV files, gzipped or not, read as columns."""

import csv
import gzip
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from autoshard.errors import InvalidInputError

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Table:
    """Columns of equal length, as text; ``name`` is for messages."""

    name: str
    columns: Mapping[str, tuple[str, ...]]
    _parsed: dict[str, FloatArray] = field(default_factory=dict, compare=False, repr=False)

    def derived(self, name: str, make: Callable[[], FloatArray]) -> FloatArray:
        """What ``make`` returns, kept for the next time that ``name`` is asked for; not to be written to."""
        if name not in self._parsed:
            self._parsed[name] = make()
        return self._parsed[name]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def text(self, column: str, missing: str = "") -> tuple[str, ...]:
        """A column as text, or ``missing`` in every row of a table without it."""
        return self.columns.get(column, (missing,) * len(self))

    def numbers(self, column: str, missing: float | None = None) -> FloatArray:
        """A column as numbers.

        Args:
            column: Its name.
            missing: What an empty cell, or a table without the column, stands for; None refuses both.

        Raises:
            InvalidInputError: for a cell that is no finite number; names the row.
        """
        if column not in self.columns:
            if missing is None:
                raise InvalidInputError(f"{self.name} has no column {column!r}")
            return np.full(len(self), missing)
        return self.derived(f"{column} {missing}", lambda: self._parse(column, missing))

    def _parse(self, column: str, missing: float | None) -> FloatArray:
        found = np.empty(len(self))
        for i, cell in enumerate(self.columns[column]):
            if cell == "" and missing is not None:
                found[i] = missing
                continue
            try:
                found[i] = float(cell)
            except ValueError:
                found[i] = np.nan
            if not np.isfinite(found[i]):
                raise InvalidInputError(f"{self.name}, row {i + 2}: {column} is no number: {cell!r}")
        return found

    def positive(self, column: str) -> FloatArray:
        """A column of numbers above zero.

        Raises:
            InvalidInputError: for any other cell; names the row.
        """
        found = self.numbers(column)
        wrong = np.flatnonzero(found <= 0)
        if len(wrong):
            raise InvalidInputError(
                f"{self.name}, row {wrong[0] + 2}: {column} must be positive, got {found[wrong[0]]:g}"
            )
        return found

    def take(self, rows: BoolArray | NDArray[np.int64]) -> "Table":
        """The rows where a mask is true, or of an index."""
        index = np.flatnonzero(rows) if rows.dtype == bool else rows
        picked = index.tolist()
        return Table(self.name, {name: tuple(cells[i] for i in picked) for name, cells in self.columns.items()})


def read_table(path: Path, required: Sequence[str] = ()) -> Table:
    """Read a CSV file with a header, gzipped or not.

    Raises:
        InvalidInputError: if it cannot be read, is empty, ragged, or lacks a column; one line.
    """
    try:
        raw = path.read_bytes()
        text = (gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw).decode("utf-8")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise InvalidInputError(f"cannot read table {path}: {error}") from error
    try:
        lines = list(csv.reader(text.splitlines(), strict=True))
    except csv.Error as error:
        raise InvalidInputError(f"table {path} is no CSV: {error}") from error
    if not lines or not any(lines[0]):
        raise InvalidInputError(f"table {path} is empty")
    header, rows = [name.strip() for name in lines[0]], [row for row in lines[1:] if row]
    lacking = [name for name in required if name not in header]
    if lacking:
        raise InvalidInputError(
            f"table {path} lacks column {lacking[0]!r}: needed are {', '.join(required)}; it has {', '.join(header)}"
        )
    if not rows:
        raise InvalidInputError(f"table {path} has no rows")
    for number, row in enumerate(rows, 2):
        if len(row) != len(header):
            raise InvalidInputError(f"table {path}, row {number}: {len(row)} cells under {len(header)} columns")
    return Table(path.name, {name: tuple(row[i].strip() for row in rows) for i, name in enumerate(header)})


def one_in(table: Table, columns: Sequence[str], n: int) -> BoolArray:
    """True for about one in ``n`` of the groups that ``columns`` make, by a hash that never changes."""
    keys = list(zip(*(table.text(column) for column in columns), strict=True))
    chosen = {key: zlib.crc32("|".join(_plain(cell) for cell in key).encode()) % n == 0 for key in set(keys)}
    return np.array([chosen[key] for key in keys], dtype=bool)


def _plain(cell: str) -> str:
    """``128.0`` and ``128`` are the same cell."""
    try:
        return f"{float(cell):g}"
    except ValueError:
        return cell
