"""A study that was killed goes on, and runs of other prices or code are run again. No search is run here."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.paper import identity, run
from benchmarks.paper.points import SUBSET, Point

POINTS = SUBSET[:2]
TODAY = {point.name: "a" * identity.DIGITS for point in POINTS}


class Killed(Exception):
    """In place of a signal."""


def a_line(point: Point, name: str, seed: int, **changed: Any) -> dict[str, Any]:
    line = {"point": point.name, "kind": "method", "name": name, "seed": seed, "cost_model": TODAY[point.name]}
    return line | {"code": identity.code("method", name)} | changed


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, tuple[int, ...]]]:
    """Tasks as they are run; each gives its lines at once."""
    found: list[tuple[str, str, tuple[int, ...]]] = []

    def run_task(task: run.Task) -> list[dict[str, Any]]:
        if len(found) == 3:
            found.append(("killed", "", ()))
            raise Killed
        found.append((task.point.name, task.name, task.seeds))
        return [a_line(task.point, task.name, seed) for seed in task.seeds]

    monkeypatch.setattr(run, "run_task", run_task)
    monkeypatch.setattr(identity, "cost_models", lambda points, _: {p.name: TODAY[p.name] for p in points})
    return found


def wanted() -> list[run.Task]:
    return list(run.tasks(POINTS, ("random", "anneal"), 2, studied=False))


def test_a_killed_run_goes_on_where_it_was(ran: list[tuple[str, str, tuple[int, ...]]], tmp_path: Path) -> None:
    out = tmp_path / "runs.jsonl"
    with pytest.raises(Killed):  # in the fourth task of 2 points x 2 methods
        run.run(wanted(), out, 1)
    assert len(run.read(out)) == 6  # three tasks of two seeds
    with out.open("a") as file:
        file.write('{"point": "cut off wh')
    run.run(wanted(), out, 1)
    assert ran[4:] == [(POINTS[1].name, "anneal", (0, 1))]  # the task that was killed, and no other
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert {identity.key(line) for line in lines} == {
        (p.name, "method", m, s) for p in POINTS for m in ("random", "anneal") for s in (0, 1)
    }
    assert len(lines) == 8  # nothing twice
    run.run(wanted(), out, 1)
    assert len(ran) == 5  # nothing is left


def test_runs_of_other_prices_or_code_are_run_again_and_unknown_ones_kept() -> None:
    point = POINTS[0]
    unknown = {k: v for k, v in a_line(point, "random", 0).items() if k not in ("cost_model", "code")}
    lines = [
        unknown,
        a_line(point, "random", 1, cost_model="b" * identity.DIGITS),
        a_line(point, "anneal", 0, code="c" * identity.DIGITS),
        a_line(point, "anneal", 1),
    ]
    left = [(t.name, t.seeds) for t in run.missing(wanted(), lines, TODAY) if t.point == point]
    assert left == [("random", (1,)), ("anneal", (0,))]
    found = identity.sort_out([*lines, a_line(point, "random", 1)], TODAY)  # run again: the last line is in force
    assert [identity.key(line)[2:] for line in found.stale] == [("anneal", 0)]
    assert found.unknown == 1
    assert len(found.kept) == 3


def test_the_code_of_a_search_is_what_it_reaches_and_its_settings() -> None:
    # rl and rl-paper are one module with other settings; anneal reaches no module of rl.
    assert identity.code("method", "rl") != identity.code("method", "rl-paper")
    reached = identity.modules_of("method", "anneal")
    assert "autoshard.search.proposals" in reached
    assert "autoshard.search.rl" not in reached
    assert "autoshard.search.climbs" in identity.modules_of("method", "rl")
