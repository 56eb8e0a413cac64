"""The examples run as they are printed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples"


def run(*arguments: str) -> str:
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    ran = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=environment, check=False)
    assert ran.returncode == 0, ran.stderr[-3000:]
    return ran.stdout


def test_five_lines() -> None:
    out = run(str(FOLDER / "five_lines.py"))
    assert "q_proj.weight (Replicate(), Shard(dim=0)) on Submesh(mesh_dim_names=('dp', 'tp')" in out


@pytest.mark.wide
def test_drive_with_sb3() -> None:
    pytest.importorskip("sb3_contrib")
    out = run(str(FOLDER / "drive_with_sb3.py"), "150")
    rates = [float(line.split("tokens/s/GPU")[0].split()[-1].replace(",", "")) for line in out.splitlines()[-3:]]
    masked, own, optimum = rates
    assert "in 150 calls" in out and 0 < masked <= optimum and 0 < own <= optimum


def test_run_4_ranks() -> None:
    launcher = ("-m", "torch.distributed.run", "--nnodes=1", "--nproc-per-node=4", "--rdzv-backend=c10d")
    rendezvous = ("--rdzv-endpoint=127.0.0.1:0", "--local-addr=127.0.0.1")
    out = run(*launcher, *rendezvous, str(FOLDER / "run_4_ranks.py"))
    assert "tp=4 ep=2 etp=2" in out and "rank 0 has layers [0, 1, 2]" in out
    assert "pp=2 dp=1 tp=2 ep=2 etp=1" in out and "rank 0 has layers [0]" in out and "rank 3 has layers [1, 2]" in out
    assert out.count("generated tokens equal: True") == 4
