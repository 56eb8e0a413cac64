"""``autoshard validate`` on two real ranks, and what it says when something differs."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from autoshard import autoshard
from autoshard.validate import FullSizeReport, LaunchTimeout, ValidationReport


def test_a_plan_on_two_ranks(command, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "plan.json"
    autoshard("mixtral-8x7b", "H100x8", search="exact", fix="tp=8,ep=8").save(path)
    ran = command("validate", str(path), "--nproc", "2", "--dtype", "float64", "--json")
    assert (ran.code, ran.err) == (0, "")
    data = json.loads(ran.out)
    assert (data["nproc"], data["device"], data["passed"]) == (2, "cpu", True)
    assert data["collectives_match"] and data["parameter_bytes_match"]
    assert 0 <= data["logits_max_rel_err"] < 1e-9
    assert data["expected"] == data["observed"] != []
    assert data["cases"][0]["name"] == "plan"
    assert data["cases"][0]["degrees"] == {"pp": 1, "dp": 1, "tp": 2, "ep": 2, "etp": 1}
    assert len(data["cases"]) > 6
    # cheapest first: the plan's own 8 ranks without numbers, then the two real ones
    full, real = data["tiers"]
    assert (full["name"], full["passed"], full["world_size"], full["logits_shape"][-1]) == ("full_size", True, 8, 32000)
    assert full["collectives_match"] and full["expected"] == full["observed"] != []
    assert (real["name"], real["passed"], real["nproc"], real["cases"]) == ("gloo_ranks", True, 2, len(data["cases"]))


@pytest.fixture
def fake_ranks(monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """Ranks that report what was expected, or a difference; nothing runs at full size."""
    import autoshard.api.validation as validation

    def full_size(*_, **__):  # type: ignore[no-untyped-def]
        return FullSizeReport(
            world_size=8, ranks=(7,), tokens=1, logits_shape=None, parameter_bytes=1, parameter_bytes_match=True,
            collectives_match=True, expected=(), observed=(), seconds=0.0,
        )  # fmt: skip

    monkeypatch.setattr(validation, "run_full_size", full_size)

    def install(difference: str | None) -> list:  # type: ignore[type-arg]
        jobs: list = []  # type: ignore[type-arg]

        def run(models, *, nproc, dtypes, **_):  # type: ignore[no-untyped-def]
            jobs.extend(models)
            one = ValidationReport(
                name="x", nproc=nproc, device="cpu", dtype="float32",
                degrees=dict.fromkeys(("pp", "dp", "tp", "ep", "etp"), 1),
                logits_max_rel_err=1e-7, tolerance=1e-5, collectives_match=difference is None, expected=(), observed=(),
                parameter_bytes=1, parameter_bytes_match=True, difference=difference,
            )  # fmt: skip
            return tuple(replace(one, name=c.name, dtype=d) for m in models for d in dtypes for c in m.cases)

        monkeypatch.setattr(validation, "run_on_ranks", run)
        return jobs

    return install


def test_a_difference_is_exit_code_1(command, fake_ranks) -> None:  # type: ignore[no-untyped-def]
    fake_ranks("rank 0: expected 1 x all_reduce over tp")
    ran = command("validate", "mixtral-8x7b", "--nproc", "2")
    assert ran.code == 1
    assert "expected 1 x all_reduce over tp" in ran.out and "differ" in ran.out
    assert json.loads(command("validate", "mixtral-8x7b", "--nproc", "2", "--json").out)["passed"] is False


def test_fixed_degrees_and_pins_are_the_first_case(command, fake_ranks) -> None:  # type: ignore[no-untyped-def]
    jobs = fake_ranks(None)
    assert command("validate", "mixtral-8x7b", "--fix", "dp=2,tp=2,ep=4", "--pin", "o=0").code == 0
    case = jobs[0].cases[0]
    assert case.name == "fixed"
    assert (case.strategy.degrees.dp, case.strategy.degrees.tp, case.strategy.degrees.ep) == (2, 2, 4)
    assert case.strategy.choice("layers/o") == 0


def test_simulated_ranks_stand_in_for_real_ones(command) -> None:  # type: ignore[no-untyped-def]
    ran = command("validate", "mixtral-8x7b", "--simulate-ranks", "2", "--dtype", "float64", "--json")
    assert (ran.code, ran.err) == (0, "")
    data = json.loads(ran.out)
    (tier,) = data["tiers"]
    assert (tier["name"], tier["nproc"], tier["passed"]) == ("simulated_ranks", 2, True)
    assert tier["logits_max_rel_err"]["float64"] < 1e-9 and data["nproc"] == 2
    assert all(case["simulated"] for case in data["cases"]) and len(data["cases"]) > 6


def test_ranks_that_need_more_time_are_one_line(command, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    import autoshard.api.validation as validation

    def late(*_, **__):  # type: ignore[no-untyped-def]
        raise LaunchTimeout("4 ranks: not done after 5 s")

    monkeypatch.setattr(validation, "run_on_ranks", late)
    ran = command("validate", "mixtral-8x7b", "--timeout-s", "5")
    assert ran.error == "4 ranks: not done after 5 s; give more with --timeout-s"


def test_plans_that_were_tampered_with_are_refused(command, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "plan.json"
    plan = autoshard("mixtral-8x7b", "H100x8", search="exact", fix="tp=8")
    plan.save(path)
    data = json.loads(path.read_text())
    data["parameters"]["lm_head.weight"]["placements"] = ["R", "R"]
    path.write_text(json.dumps(data))
    assert "placement of lm_head.weight is" in command("validate", str(path)).error
    path.write_text('{"schema": "autoshard.plan/9"}')
    assert "is no plan of schema autoshard.plan/1" in command("validate", str(path)).error
