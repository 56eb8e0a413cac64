"""Writes docs/sweeps.md: combinations of choices and random strategies that ran sharded like the unsharded model.

``python -m docs.make_sweeps WHAT [NAME...]`` in the root of the repository, where WHAT is one of ``combinations``,
``simulated`` and ``real``, runs a family at a time and puts its figures into the table, whose other figures stay. About
0.07 s of CPU time a strategy, rank and layer: two hours for everything.
"""

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.validate.sweeps import SWEPT, Outcome, run_combinations, run_random_of

SEED, RANDOM, REAL = 4, 300, 20
COLUMNS = ("combinations", "simulated", "real")
FILE = Path(__file__).with_name("sweeps.md")
TEXT = f"""# Strategies that ran, and how exactly

Written by `python -m docs.make_sweeps`: do not edit. Small models of each family run a prompt of 6 tokens and a cached
decode step sharded, in float64 with forced float32 lifted, and are compared with themselves unsharded. A cell says how
many strategies ran, how many of them did not agree in logits (max|a-b| / max|b| < 1e-9), in collectives (kind, group,
bytes, count) or in bytes of parameters, and the worst error of logits.

- combinations: q, k, v, o x the FFN's in and out, each sharded by output, by input or replicated (3^4 x 3^2; latent
  attention 3 x 3 x 2 x 3 x 3^2; one fused projection 3^2 x 3^2), on 2 simulated ranks, one layer of every kind; the
  choices of other ops are drawn.
- simulated: {RANDOM} different strategies of the space, drawn by hypothesis with seed {SEED}, on 4 simulated ranks, at
  all degrees, two stages included.
- real: {REAL} more on 4 gloo processes (seed {SEED + 1}).

| family | combinations | simulated | real |
|---|---|---|---|
"""


def cell(found: Outcome) -> str:
    """A cell's text."""
    return f"{len(found.reports)}: {len(found.failed)} differ, {found.worst:.0e}"


def written() -> dict[str, dict[str, str]]:
    """The figures of the table as it is."""
    rows: dict[str, dict[str, str]] = {}
    for line in FILE.read_text(encoding="utf-8").splitlines() if FILE.exists() else ():
        name, *cells = (part.strip() for part in line.strip("| ").split("|"))
        if line.startswith("| ") and name in SWEPT:
            rows[name] = dict(zip(COLUMNS, cells, strict=True))
    return rows


def write(rows: Mapping[str, Mapping[str, str]]) -> None:
    """The table, in the order of families."""
    lines = [
        f"| {name} | " + " | ".join(rows.get(name, {}).get(column) or "(not run)" for column in COLUMNS) + " |"
        for name in SWEPT
    ]
    FILE.write_text(TEXT + "\n".join([*lines, ""]), encoding="utf-8")


def run(what: str, names: Sequence[str]) -> list[Outcome]:
    """One column of some families' strategies."""
    if what == "combinations":
        return [run_combinations(name) for name in names]
    simulated = what == "simulated"
    return run_random_of(names, RANDOM if simulated else REAL, SEED + (not simulated), simulated=simulated)


def main(what: str, *names: str) -> int:
    """Run what is asked for; 1 when anything differs. Families share a launch of real ranks, a few at a time."""
    failed = 0
    asked, together = names or SWEPT, 4 if what == "real" else 1
    for first in range(0, len(asked), together):
        start, cpu = time.perf_counter(), time.process_time()
        outcomes = run(what, asked[first : first + together])
        seconds = f"{time.perf_counter() - start:.0f} s, {time.process_time() - cpu:.0f} s of CPU"
        for found in outcomes:
            print(f"{what}: {found} ({seconds})", *found.failed[:10], sep="\n  ", file=sys.stderr, flush=True)
            failed += len(found.failed)
            put(what, found)
    return 1 if failed else 0


def put(what: str, found: Outcome) -> None:
    """Write a family's figures into the table."""
    rows = written()
    rows.setdefault(found.name, {})[what] = cell(found)
    write(rows)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
