"""An interrupted search, continued from its file, ends as if it had not been interrupted."""

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from autoshard.api.compare import compare
from autoshard.api.solve import resumable_search, run_search
from autoshard.errors import InvalidInputError
from autoshard.hardware import parse_cluster
from autoshard.search.problem import ShardingProblem
from autoshard.search.state import SearchState, problem_hash
from autoshard.simulator import Simulator
from autoshard.workload import Workload
from tests.graphs import GraphMaker


class Killed(Exception):
    pass


def simulator(*, context: int = 2048) -> Simulator:
    graph = GraphMaker(hidden=1024, intermediate=1536, experts=4).graph("dm")
    return Simulator(graph, parse_cluster("H100x8"), Workload(context=context), fixed={"pp": 1})


@pytest.fixture(scope="module")
def sim() -> Simulator:
    return simulator()


def killed_after(monkeypatch: pytest.MonkeyPatch, calls: int) -> list[int]:
    """Simulator calls really made; the one that would go beyond ``calls`` never returns."""
    made = [0]
    original = ShardingProblem._scores

    def counted(self: ShardingProblem, x: np.ndarray):  # type: ignore[no-untyped-def]
        if made[0] + len(x) > calls:
            raise Killed
        made[0] += len(x)
        return original(self, x)

    monkeypatch.setattr(ShardingProblem, "_scores", counted)
    return made


OTHERS = ("rl-paper", "mcmc", "evolution", "walk")


@pytest.mark.parametrize("method", ["rl", "anneal", *(pytest.param(m, marks=pytest.mark.wide) for m in OTHERS)])
def test_a_killed_search_ends_the_same(sim: Simulator, tmp_path: Path, monkeypatch, method: str) -> None:  # type: ignore[no-untyped-def]
    budget = 120
    path = tmp_path / "state"
    _, whole = run_search(sim, method, budget=budget, seed=3)
    with monkeypatch.context() as patch, pytest.raises(Killed):
        killed_after(patch, 70)
        resumable_search(sim, method, budget=budget, seed=3, state=SearchState(path, sim))
    kept = sum(len(json.loads(line)["rows"]) for line in path.read_text().splitlines()[1:])
    assert 0 < kept <= 70

    with monkeypatch.context() as patch:
        made = killed_after(patch, 10**9)
        problem, resumed, _ = resumable_search(sim, method, budget=budget, seed=3, state=SearchState(path, sim))
    assert resumed == whole
    # What the file had is not evaluated again, but counts: never more than the budget in all.
    assert made[0] == whole.calls - kept
    assert problem.calls == whole.calls <= budget

    with monkeypatch.context() as patch:
        made = killed_after(patch, 0)
        _, again, _ = resumable_search(sim, method, budget=budget, seed=3, state=SearchState(path, sim))
    assert again == whole and made == [0]
    assert "rows" not in path.read_text()  # a run that ended leaves its result alone


def test_a_comparison_goes_on_where_it_was(sim: Simulator, tmp_path: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    def runs(**more: object) -> list[tuple[str, object]]:
        found = compare(sim, methods=("megatron", "anneal", "random"), seeds=2, budget=100, **more)  # type: ignore[arg-type]
        return [
            (name, [{k: v for k, v in run.items() if k != "seconds"} for run in each["runs"]])
            for name, each in found["methods"].items()
        ]

    path = tmp_path / "state"
    whole = runs()
    num_megatron = len(ShardingProblem(sim).megatron_points())
    with monkeypatch.context() as patch, pytest.raises(Killed):
        killed_after(patch, num_megatron + 190)  # within the second seed of anneal
        runs(state=path)
    with monkeypatch.context() as patch:
        made = killed_after(patch, 10**9)
        assert runs(state=path) == whole
    # 100 calls a seed of 2 searches with 2 each; megatron and one of anneal had ended, part of the other was kept.
    assert 200 < made[0] < 300


def test_another_problem_is_refused_in_one_line(sim: Simulator, tmp_path: Path) -> None:
    path = tmp_path / "state"
    SearchState(path, sim)
    SearchState(path, simulator())
    other = simulator(context=4096)
    assert problem_hash(other) != problem_hash(sim) == problem_hash(simulator())
    with pytest.raises(InvalidInputError, match="another problem") as error:
        SearchState(path, other)
    assert "\n" not in str(error.value)


def test_damage_is_named_and_a_cut_off_line_is_dropped(sim: Simulator, tmp_path: Path) -> None:
    path = tmp_path / "state"
    state = SearchState(path, sim)
    problem = ShardingProblem(sim, known=state)
    rows = problem.megatron_points()[:4]
    scores = problem.evaluate(rows[:2])
    whole = path.read_bytes()
    problem.evaluate(rows[2:])
    path.write_bytes(path.read_bytes()[:-5])
    again = SearchState(path, sim)
    assert path.read_bytes() == whole
    found = again.scores(rows[:2], lambda x: pytest.fail(f"{len(x)} evaluated again"))
    assert np.array_equal(found.throughput, scores.throughput)

    header, line = whole.decode().splitlines()
    for damaged, why in (
        (line.replace('"rows":[[', '"rows":[['[:-1]), "line 2 is damaged"),
        (line.replace('"throughput":[', '"throughput":[NaN,'), "line 2 is damaged"),
        (line.replace('"violation":[', '"violation":[0.5,'), "line 2 is damaged: lengths differ"),
        ('{"run": "rl"}', "line 2 is damaged"),
        ('{"rows": [[' + "9" * 24 + ']], "throughput": [1], "violation": [0]}', "line 2 is damaged"),
    ):
        path.write_text(f"{header}\n{damaged}\n")
        with pytest.raises(InvalidInputError, match=why):
            SearchState(path, sim)
    with pytest.raises(InvalidInputError, match="search state"):
        SearchState(tmp_path / ("a" * 300), sim)
    for text in ("not a state\n", "{}\n", '{"schema": "autoshard.plan/1"}\n'):
        path.write_text(text)
        with pytest.raises(InvalidInputError, match="no search state"):
            SearchState(path, sim)


def test_a_result_of_no_strategy_of_the_problem_is_refused(sim: Simulator, tmp_path: Path) -> None:
    path = tmp_path / "state"
    resumable_search(sim, "random", budget=20, seed=0, state=SearchState(path, sim))
    header, ended = path.read_text().splitlines()
    data = json.loads(ended)
    data["result"]["best"][0] = 999
    path.write_text(f"{header}\n{json.dumps(data)}\n")
    with pytest.raises(InvalidInputError, match="not legal"):
        resumable_search(sim, "random", budget=20, seed=0, state=SearchState(path, sim))


@pytest.mark.wide
def test_a_process_that_is_killed_continues(tmp_path: Path) -> None:
    """SIGKILL in the middle of ``autoshard plan``; the same command again gives the same plan file, bit for bit."""
    state, plans = tmp_path / "state", (tmp_path / "whole.json", tmp_path / "resumed.json")
    code = "import sys; from autoshard.cli import main; main()"
    common = [sys.executable, "-c", code, "plan", "mixtral-8x7b", "--cluster", "H100x64", "--seed", "1"]
    subprocess.run([*common, "-o", str(plans[0])], check=True, capture_output=True)
    resumable = [*common, "--state", str(state), "-o", str(plans[1])]
    process = subprocess.Popen(resumable, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not state.exists() or state.stat().st_size < 60_000:
        assert process.poll() is None, "it ended before it could be killed"
        time.sleep(0.02)
    process.kill()
    process.wait()
    assert not plans[1].exists() and b'"rows"' in state.read_bytes()
    subprocess.run(resumable, check=True, capture_output=True)
    assert plans[1].read_bytes() == plans[0].read_bytes()
