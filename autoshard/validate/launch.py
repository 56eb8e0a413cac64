"""Starting real ranks: torchrun on this machine's loopback, with a deadline after which nothing of it is left."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from autoshard.errors import AutoshardError
from autoshard.validate.job import Job


class LaunchError(AutoshardError):
    """Ranks that died."""


class LaunchTimeout(LaunchError):
    """Ranks that did not end in time."""


def launch(job: Job, nproc: int, *, python_path: Sequence[Path] = ()) -> list[list[dict[str, Any]]]:
    """Run ``job`` on ``nproc`` ranks; the results of every rank, in rank order.

    ``python_path`` is added to the ranks' module search path.

    Raises:
        LaunchTimeout: when the job's time is over.
        LaunchError: when a rank dies; the end of what ranks printed is in the message.
    """
    with tempfile.TemporaryDirectory(prefix="autoshard-validate-") as folder:
        path = Path(folder) / "job.json"
        path.write_text(job.model_dump_json())
        command = [sys.executable, "-m", "autoshard.validate.elastic", str(path), str(nproc)]
        started = time.monotonic()
        with open(Path(folder) / "output.txt", "w+") as output:
            code = _run(command, _environment(python_path), output, job.timeout_s)
            output.seek(0)
            printed = output.read()
        results = [Path(folder) / f"rank{rank}.json" for rank in range(nproc)]
        if code != 0 or not all(r.exists() for r in results):
            if code is None or time.monotonic() - started >= job.timeout_s:
                raise LaunchTimeout(f"{nproc} ranks: not done after {job.timeout_s:g} s")
            raise LaunchError(f"{nproc} ranks: exit code {code}\n{printed[-4000:]}")
        return [json.loads(r.read_text()) for r in results]


def _environment(python_path: Sequence[Path]) -> dict[str, str]:
    """One thread per rank, loopback only, no downloads, and the parent's module search path."""
    search = [str(p) for p in python_path] + [p or os.getcwd() for p in sys.path]
    return {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "NCCL_SOCKET_IFNAME": "lo",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "PYTHONPATH": os.pathsep.join(search),
    }


def _run(command: Sequence[str], environment: dict[str, str], output: Any, timeout_s: float) -> int | None:
    """Exit code, or None when time was over. The processes are a group of their own, which is ended as a whole."""
    process = subprocess.Popen(
        command,
        env=environment,
        stdout=output,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        return process.wait(timeout=timeout_s + 15)
    except subprocess.TimeoutExpired:
        return None
    finally:
        for sign, patience in ((signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0)):
            if process.poll() is not None:
                break
            os.killpg(process.pid, sign)
            try:
                process.wait(timeout=patience)
            except subprocess.TimeoutExpired:
                continue
