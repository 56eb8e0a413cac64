"""``generate()`` on 4 ranks gives the unsharded tokens: five families, at every kind of degrees, stages included.

One family is generated from in the example's test as well, which is not wide.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.emit.generate_ranks import NEW, POINTS, PROMPT

FAMILIES = ("mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v3", "gpt-oss-120b", "qwen3-next-80b-a3b", "olmoe-1b-7b")

FLOAT32 = {"qwen3-next-80b-a3b": 1e-4}
"""Its unsharded float32 logits are themselves 1.7e-5 from float64's, and sums in another order differ as much."""


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    out = tmp_path_factory.mktemp("generate")
    environment = {
        **os.environ,
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(p or os.getcwd() for p in sys.path),
    }
    command = [sys.executable, "-m", "tests.emit.generate_ranks", str(out), "4", "all", *FAMILIES]
    ran = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert ran.returncode == 0, ran.stderr[-3000:]
    found = [json.loads(Path(out / f"rank{rank}.json").read_text()) for rank in range(4)]
    return [{m["model"]: m for m in rank} for rank in found]


@pytest.mark.wide
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_are_those_of_the_unsharded_model(ranks: list[dict[str, Any]], family: str) -> None:
    assert all(rank[family]["distinct_tokens"] > 10 for rank in ranks), "a model that repeats itself proves little"
    for point in POINTS:
        found = [rank[family][point] for rank in ranks]
        assert all(f["equal"] and f["equal_until_the_end"] and f["sampled"] for f in found), (point, found)
    # One sequence a dp rank: the first ends at its 5th token or before, some other does not.
    lengths = [rank[family]["attention_dp_ep_x_etp"]["length"] for rank in ranks]
    assert lengths[0] <= PROMPT + 5 and max(lengths) > lengths[0] and max(lengths) <= PROMPT + NEW


@pytest.mark.wide
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("family", FAMILIES)
def test_torchs_own_schedule_runs_the_stages(ranks: list[dict[str, Any]], family: str) -> None:
    for point in ("pp2_x_tp", "pp2_x_dp"):
        errors = [rank[family][f"{point} ScheduleGPipe"] for rank in ranks]
        assert errors[:2] == [None, None] and all(e < FLOAT32.get(family, 1e-5) for e in errors[2:]), errors
