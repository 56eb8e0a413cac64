"""``autoshard export``: files and JSON, or one line that says why not and what comes nearest."""

import json
from pathlib import Path

import pytest

from autoshard import autoshard
from tests.cli.conftest import Command

PIN = "embed=0,q=0,k=0,v=0,attention=0,o=1,router=none,experts_up=0,experts_act=0,experts_down=1,head=0"


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plans") / "plan.json"
    autoshard("mixtral-8x7b", "H100x8", search="exact", fix="tp=8,ep=2,dp=1,pp=1,batch=64", pin=PIN).save(path)
    return path


def test_an_export_is_written_and_described(plan_file: Path, tmp_path: Path, command: Command) -> None:
    ran = command("export", str(plan_file), "--to", "sglang", "-o", str(tmp_path / "out"), "--json")
    assert ran.code == 0 and ran.err == ""
    data = json.loads(ran.out)
    assert data["target"] == "sglang" and data["version"] == "SGLang 0.5"
    assert data["nearest"] is False and data["predicted_loss"] == 0.0
    assert data["degrees"]["ep"] == 2
    assert data["written"] == [str(tmp_path / "out" / n) for n in ("config.yaml", "launch.sh")]
    assert "ep-size: 2" in (tmp_path / "out" / "config.yaml").read_text()
    assert (tmp_path / "out" / "launch.sh").stat().st_mode & 0o111
    shown = command("export", str(plan_file), "--to", "sglang")
    assert shown.code == 0 and "ep-size: 2" in shown.out and "./launch.sh MODEL" in shown.out


def test_a_refusal_is_one_line_with_the_nearest(plan_file: Path, command: Command) -> None:
    error = command("export", str(plan_file), "--to", "vllm", "--json").error
    assert error.startswith("vLLM 0.12.0 cannot express this plan: ep=2 with etp=4: its experts are split")
    assert " Nearest: pp=" in error and error.endswith("(--nearest exports it)")
    found = json.loads(command("export", str(plan_file), "--to", "vllm", "--nearest", "--json").out)
    d = found["degrees"]
    assert found["nearest"] is True and 1 in (d["ep"], d["etp"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--to", "llamacpp"), "unknown target 'llamacpp'"),
        (("--to", "vllm", "--cluster", "H100x16"), "the plan was made for H100x8 with num_devices = 8; H100x16 has 16"),
        (("--to", "sglang", "-o", "/no/such/folder/out"), "cannot write /no/such/folder/out"),
    ],
)
def test_mistakes(arguments: tuple[str, ...], message: str, plan_file: Path, command: Command) -> None:
    assert message in command("export", str(plan_file), *arguments).error
