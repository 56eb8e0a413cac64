"""Measures this machine with tiny sizes: what comes out is used, never how fast it was."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from autoshard.calibrate import KINDS, read_table
from autoshard.calibrate.measure import measure_machine
from autoshard.cli.run import run
from autoshard.cost import gemm_s
from autoshard.errors import InvalidInputError
from autoshard.hardware import parse_cluster

ROOT = Path(__file__).parents[2]


def test_measure_writes_a_cluster_that_loads(tmp_path: Path) -> None:
    found = measure_machine(device="cpu", name="here", like="H100", quick=True)
    assert found is not None
    file = tmp_path / "here.yaml"
    file.write_text(found.cluster_text())
    cluster = parse_cluster(str(file))
    assert (cluster.name, cluster.num_devices, cluster.device.name) == ("here", 1, "here")
    assert gemm_s(cluster.device, 8, 64, 64) > 0
    assert "[measured:" in file.read_text() and "[inherited: H100]" in file.read_text()
    found.write_tables(tmp_path / "tables")
    for kind in ("gemm", "moe", "attention_decode", "attention_prefill"):
        assert (
            len(read_table(tmp_path / "tables" / f"{kind}_here.csv", KINDS[kind].columns))
            == found.report()["rows"][kind]
        )


def test_two_ranks_measure_collectives(tmp_path: Path) -> None:
    file = tmp_path / "two.yaml"
    arguments = ["calibrate", "measure", "--device", "cpu", "--quick", "-o", str(file)]
    code = f"from autoshard.cli import main; main({arguments!r})"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--no-python"]
    done = subprocess.run(
        [*command, sys.executable, "-c", code],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    cluster = parse_cluster(str(file))
    assert cluster.num_devices == 2
    for kind in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
        assert [ranks for ranks, _ in cluster.intra.law(kind).by_ranks] == [2]


def test_unknown_devices_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="this machine has cpu"):
        measure_machine(device="abacus", name="x", like="H100", quick=True)


def test_eval_prints_one_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    path = ROOT / "benchmarks" / "data" / "nccl_h100.csv.gz"
    assert run(["calibrate", "eval", str(path), "--kind", "nccl", "--device", "H200", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert {"median_ape", "p90_ape", "rows", "by"} <= set(data) and data["device"] == "H200"
    assert run(["calibrate", "eval", str(path), "--kind", "nccl"]) == 0
    assert "all_reduce/8" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--kind", "sorting"], "unknown kind 'sorting'"),
        (["--kind", "gemm"], "lacks column 'gemm_dtype'"),
        (["--kind", "nccl", "--device", "H10"], "unknown device 'H10'"),
    ],
)
def test_eval_mistakes_are_one_line(arguments: list[str], part: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = ROOT / "benchmarks" / "data" / "nccl_h100.csv.gz"
    assert run(["calibrate", "eval", str(path), *arguments, "--json"]) == 2
    said = capsys.readouterr()
    assert said.out == "" and part in said.err and len(said.err.strip().splitlines()) == 1


def test_fit_writes_and_reports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "tables"
    folder.mkdir()
    (folder / "nccl_lab.csv.gz").write_bytes((ROOT / "benchmarks" / "data" / "nccl_h100.csv.gz").read_bytes())
    assert run(["calibrate", "fit", str(folder), "-o", str(tmp_path / "d.yaml"), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert len(data["groups"]) == 12 and (tmp_path / "d.yaml").read_text().startswith("# NVIDIA H100")
