"""`validate` as the ranks of a job that torchrun has started."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from autoshard.errors import InvalidInputError
from autoshard.tracing import ConfigSource
from autoshard.validate import check_joined, is_first
from tests.validate.sources import SOURCES

JOB = {
    "RANK": "3",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "a",
    "MASTER_PORT": "1",
}


def test_outside_of_a_job_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    assert check_joined(4, 64, "cpu") is None and is_first()


def test_a_job_has_its_own_number_of_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in JOB.items():
        monkeypatch.setenv(name, value)
    assert check_joined(None, None, None) == 8 and check_joined(8, None, "cpu") == 8 and not is_first()
    with pytest.raises(InvalidInputError, match="nproc=4 in a torchrun job of 8 ranks: leave it out, or give 8"):
        check_joined(4, None, None)
    with pytest.raises(InvalidInputError, match="simulate_ranks=64 in a torchrun job of 8 ranks"):
        check_joined(None, 64, None)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    with pytest.raises(InvalidInputError, match="2 ranks on a node with 1 GPU: start torchrun with --nproc-per-node 1"):
        check_joined(None, None, "cuda")


@pytest.mark.wide
def test_two_nodes_of_two_ranks_prove_a_model(tmp_path: Path) -> None:
    """Two agents on loopback, as on two machines; the first rank alone prints."""
    source = SOURCES["llama"]
    assert isinstance(source, ConfigSource)
    config = {**source.config, "architectures": [source.class_name], "model_type": "llama"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "2", "--no-python"]
    command += ["--master-addr", "127.0.0.1", "--master-port", port]
    main = "from autoshard.cli import main; main()"
    nodes = [
        subprocess.Popen(
            [*command, "--node-rank", str(n), sys.executable, "-c", main, "validate", str(tmp_path / "config.json")],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for n in range(2)
    ]
    printed = [node.communicate(timeout=500)[0] for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0]
    assert sum("cases" in text and "passed" in text for text in printed) == 1
