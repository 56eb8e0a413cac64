"""``--effects`` on every command that takes it: what is recorded, what is said, and that the numbers agree."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Command
from tests.cli.test_mistakes import SMALL

EFFECTS = ["overlap", "two-batch", "contention", "skew"]
WHERE = ("--cluster", "H100x8", "--context", "2048", "--phase", "prefill", "--effects", "all")


@pytest.fixture
def small(write_config: Callable[[str], str]) -> str:
    return write_config(json.dumps(SMALL))


def test_a_plan_records_its_effects_and_the_others_price_it_alike(command: Command, small: str, tmp_path: Path) -> None:
    path = str(tmp_path / "plan.json")
    ran = command(
        "plan", small, *WHERE, "--fix", "pp=1,tp=2", "--search", "anneal", "--budget", "150", "--json", "-o", path
    )
    assert ran.code == 0, ran.err
    plan = json.loads(ran.out)
    search, predicted = plan["search"], plan["predicted"]
    assert plan["workload"]["effects"] == EFFECTS
    assert search["exact_tokens_per_s_per_gpu"] >= predicted["tokens_per_s_per_gpu"] * (1 - 1e-9)
    assert predicted["two_batch"] in (True, False)
    assert search["taken_from"] in ("search", "exact")
    assert sum(t["seconds"] for t in predicted["terms"]) == pytest.approx(predicted["step_s"])

    explained = json.loads(command("explain", path, "--json").out)
    assert explained["predicted"]["step_s"] == pytest.approx(predicted["step_s"])
    taken = [
        next(o["relative"] for o in c["options"] if o["choice"] == c["taken"]) for c in explained["choices"].values()
    ]
    assert min(taken) == pytest.approx(max(taken))  # swapping nothing costs nothing, whichever op is asked

    degrees = ",".join(f"{k}={v}" for k, v in plan["degrees"].items())
    choices = ",".join(f"{k.removeprefix('model/')}={'none' if c is None else c}" for k, c in plan["choices"].items())
    simulated = json.loads(command("simulate", small, *WHERE, "--fix", degrees, "--pin", choices, "--json").out)
    assert simulated["feasible"] and simulated["workload"]["effects"] == EFFECTS
    if "balanced_gain" not in search or search["balanced_gain"] is None:
        assert simulated["predicted"]["step_s"] == pytest.approx(predicted["step_s"])


def test_compare_says_bound_and_best_known(command: Command, small: str) -> None:
    what = ("compare", small, *WHERE, "--fix", "pp=1,tp=2", "--methods", "random", "--seeds", "1", "--budget", "50")
    data = json.loads(command(*what, "--json").out)
    assert data["effects"] == EFFECTS and set(data["exact"]) >= {"bound_tokens_per_s_per_gpu", "is_bound"}
    shown = command(*what).out
    assert "effects" in shown and ("bound" in shown or not data["exact"]["is_bound"])
