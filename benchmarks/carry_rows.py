"""Writes the compact measured subset in ``benchmarks/data``: ``python benchmarks/carry_rows.py FOLDER``.

Of every table: the rows that the shipped fit did not see, thinned by hash where there are many; of the collectives all
rows, as the page about FFN collectives shows them. Without a folder it does nothing, so that ``make bench`` may run it.
"""

import csv
import gzip
import io
import sys
from pathlib import Path

import numpy as np

from autoshard.calibrate import KINDS, Table, read_table
from autoshard.calibrate.fit import table_path

DATA = Path(__file__).parent / "data"
MOST_ROWS = 2400


def thinned(table: Table) -> Table:
    """At most about ``MOST_ROWS`` rows, evenly over the table."""
    step = max(1, -(-len(table) // MOST_ROWS))
    return table.take(np.arange(0, len(table), step))


def main() -> None:
    if len(sys.argv) != 2:
        print("nothing carried over: give the folder with the measured tables")
        return
    for kind in KINDS.values():
        path = table_path(Path(sys.argv[1]), kind)
        if path is None:
            continue
        table = read_table(path, kind.columns)
        if kind.name not in {"nccl", "custom_allreduce"}:
            table = thinned(table.take(kind.held_out(table)))
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(table.columns)
        writer.writerows(zip(*table.columns.values(), strict=True))
        with (DATA / path.name).open("wb") as file, gzip.GzipFile("", "wb", 9, file, mtime=0) as packed:
            packed.write(text.getvalue().encode())
        print(f"{path.name}: {len(table)} rows")


if __name__ == "__main__":
    main()
