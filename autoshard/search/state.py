"""The state of searches in a file, so that one that was interrupted ends as if it had not been.

A seeded search asks for the same strategies in the same order and is told the same of them, so that what it was told is
all of its state: the file logs every score as it comes. Resumed, a search runs from its start, takes known scores from
the file (they count as calls as before) and evaluates from where it was cut off. A run that ended leaves its result in
place of its scores, and is not run again.

The file is lines of JSON; nothing in it is executed. The first line holds the hash of the problem, whose every price,
byte and legal choice goes into it, so that scores of another problem are never taken for this one's. A last line that
was cut off while it was written is dropped.
"""

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from autoshard.errors import InvalidInputError
from autoshard.search.problem import ShardingProblem
from autoshard.search.protocol import IntArray, Scores
from autoshard.search.result import SearchResult
from autoshard.simulator.simulator import Simulator

SCHEMA = "autoshard.search-state/1"
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Index = Annotated[int, Field(ge=0, lt=2**31)]


class _Line(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Header(_Line):
    schema_: Literal["autoshard.search-state/1"] = Field(alias="schema")
    problem: str
    what: str


class _Scored(_Line):
    rows: tuple[tuple[Index, ...], ...]
    throughput: tuple[Amount, ...]
    violation: tuple[Amount, ...]


class _Result(_Line):
    algorithm: str
    seed: int
    best: tuple[Index, ...] | None
    throughput: Amount
    calls: Index
    history: tuple[tuple[Index, Amount], ...]
    found_at_call: Index
    note: str


class _Ended(_Line):
    run: str
    seconds: Amount
    result: _Result


_BODY: TypeAdapter[_Scored | _Ended] = TypeAdapter(_Scored | _Ended)


def problem_hash(simulator: Simulator) -> str:
    """Hash of everything a score depends on: the tables that are looked up, the limits, and the program's version."""
    found = hashlib.sha256()
    for item in _facts(simulator):
        if isinstance(item, np.ndarray):
            found.update(f"{item.dtype.str}{item.shape}".encode())
            found.update(np.ascontiguousarray(item).data)
        else:
            found.update(repr(item).encode())
    return found.hexdigest()


def _facts(sim: Simulator) -> Iterator[object]:
    yield (
        version("autoshard"),
        sim.graph.structural_hash(),
        sim.workload,
        sim.cluster,
        sorted(sim.fixed.items()),
        sim.stages,
        sim.uneven,
    )
    # Whatever flags a simulator has: they may change scores without changing a table.
    yield sorted((name, value) for name, value in vars(sim).items() if isinstance(value, bool | int | float | str))
    p = sim.points
    yield from (p.pp, p.dp, p.tp, p.ep, p.etp, p.sequences, p.microbatches, p.replicas)
    for variable in sim.variables:
        yield variable.key, variable.choices, variable.needs_residual
        yield variable.legal
    for measure in (sim.objective, *sim.limited):
        yield measure.name, measure.limit_s
        yield measure.send_s
        for part in measure.parts:
            for factor in part.factors:
                yield part.name, factor.variables, factor.label, factor.what, factor.classes
                yield factor.table
            for v, table in (*part.weights, *part.kv):
                yield part.name, v
                yield table
    yield from (sim.profiles, sim.activations, sim.tokens_in_flight)


class SearchState:
    """Scores and results of searches of one problem, in a file that grows as they come."""

    def __init__(self, path: Path, simulator: Simulator) -> None:
        """Read the file, or begin one.

        Raises:
            InvalidInputError: when it is not such a file, is damaged, or belongs to another problem.
        """
        self._path = path
        what = f"{simulator.graph.model_name} on {simulator.cluster.name}"
        header = _Header(schema=SCHEMA, problem=problem_hash(simulator), what=what)
        self._header = header.model_dump_json(by_alias=True)
        self._ended: dict[str, _Ended] = {}
        self._scores: dict[bytes, tuple[float, float]] = {}
        try:
            begun = path.exists() and path.stat().st_size > 0
            data = path.read_bytes() if begun else b""
        except OSError as error:
            raise InvalidInputError(f"cannot read the search state {path}: {error.strerror}") from None
        if not begun:
            self._rewrite()
            return
        whole, _, rest = data.rpartition(b"\n")
        first, *lines = whole.split(b"\n")
        self._check_header(first, header)
        for number, line in enumerate(lines, 2):
            self._read(number, line)
        if rest:  # cut off while it was written
            self._write(lambda: os.truncate(path, len(whole) + 1))

    def _check_header(self, line: bytes, wanted: _Header) -> None:
        try:
            found = _Header.model_validate_json(line)
        except ValidationError:
            raise InvalidInputError(f"{self._path} is no search state of schema {SCHEMA}") from None
        if found.problem != wanted.problem:
            same = "the same names, but other options, prices or version" if found.what == wanted.what else wanted.what
            raise InvalidInputError(
                f"{self._path} is the state of a search of another problem ({found.what}, hash {found.problem[:12]});"
                f" this is {same} (hash {wanted.problem[:12]}): name another file or remove it"
            )

    def _read(self, number: int, line: bytes) -> None:
        try:
            found = _BODY.validate_json(line)
        except ValidationError as error:
            why = error.errors()[0]["msg"]
            raise InvalidInputError(f"search state {self._path}, line {number} is damaged: {why}") from None
        if isinstance(found, _Ended):
            self._ended[found.run] = found
            self._scores.clear()
            return
        lengths = {len(found.rows), len(found.throughput), len(found.violation)}
        widths = {len(row) for row in found.rows}
        if len(lengths) != 1 or len(widths) > 1:
            raise InvalidInputError(f"search state {self._path}, line {number} is damaged: lengths differ")
        for row, throughput, violation in zip(found.rows, found.throughput, found.violation, strict=True):
            self._scores[np.array(row, dtype=np.int64).tobytes()] = (throughput, violation)

    def scores(self, x: IntArray, evaluate: Callable[[IntArray], Scores]) -> Scores:
        """Scores of rows: those known from the file, the others from ``evaluate``, and then in the file."""
        keys = [row.tobytes() for row in x]
        new = [i for i, key in enumerate(keys) if key not in self._scores]
        if new:
            fresh = evaluate(x[new])
            pairs = list(zip(fresh.throughput.tolist(), fresh.violation.tolist(), strict=True))
            line = {"rows": x[new].tolist(), "throughput": [t for t, _ in pairs], "violation": [v for _, v in pairs]}
            self._append(json.dumps(line, separators=(",", ":")))
            self._scores.update(zip([keys[i] for i in new], pairs, strict=True))
        table = np.array([self._scores[key] for key in keys], dtype=np.float64).reshape(-1, 2)
        return Scores(throughput=table[:, 0].copy(), violation=table[:, 1].copy())

    def ended(self, run: str, problem: ShardingProblem) -> tuple[SearchResult, float] | None:
        """Result and seconds of a run that has ended; None if it has not.

        Raises:
            InvalidInputError: when its best strategy is none of the problem's.
        """
        found = self._ended.get(run)
        if found is None:
            return None
        best = found.result.best
        if best is not None and (
            len(best) != len(problem.num_options) or not problem.legal(np.array([best], dtype=np.int64))[0]
        ):
            raise InvalidInputError(f"search state {self._path} is damaged: the best strategy of {run} is not legal")
        return SearchResult(**found.result.model_dump()), found.seconds

    def end(self, run: str, result: SearchResult, seconds: float) -> None:
        """Keep the result of a run and forget the scores that led to it."""
        self._ended[run] = _Ended(run=run, seconds=seconds, result=_Result(**asdict(result)))
        self._scores.clear()
        self._rewrite()

    def _append(self, line: str) -> None:
        def add() -> None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(line + "\n")

        self._write(add)

    def _rewrite(self) -> None:
        """Header and results, whole or not at all."""
        lines = [self._header, *(each.model_dump_json() for each in self._ended.values())]

        def replace() -> None:
            handle, draft = tempfile.mkstemp(dir=self._path.parent, prefix=f".{self._path.name}.", suffix=".tmp")
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write("\n".join(lines) + "\n")
            Path(draft).chmod(0o644)
            Path(draft).replace(self._path)

        self._write(replace)

    def _write(self, action: Callable[[], None]) -> None:
        try:
            action()
        except OSError as error:
            raise InvalidInputError(f"cannot write the search state {self._path}: {error.strerror}") from None
