"""Launch scripts run, with something else in place of the engine; their commands by the engines' own parsers.

The parsers' packages are large and not needed for anything else. To run the wide tests:
``pip download --no-deps -d DIR vllm==0.12.0 sglang`` (and ``pip install --no-deps -t DIR/more cachetools msgspec regex
pybase64 orjson``), unpack each wheel into ``DIR/vllm`` and ``DIR/sglang``, and set ``AUTOSHARD_ENGINES=DIR``.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from autoshard.api.export import export
from autoshard.export import TARGETS, Export, save
from autoshard.export.engines.launch import flag_list
from autoshard.sharding import Degrees
from autoshard.workload import Workload
from tests.export.conftest import MakePlan
from tests.validate.sources import graph_of

PROGRAMS = ("vllm", "python", "trtllm-serve", "mpirun", "torchrun")


def made(plan_of_strategy: MakePlan, engine: str, degrees: Degrees, cluster: str, **workload: str) -> Export:
    strategy = TARGETS[engine].strategy(graph_of("mixtral"), degrees)
    assert strategy is not None
    plan = plan_of_strategy(graph_of("mixtral"), strategy, cluster, Workload(**workload))  # type: ignore[arg-type]
    return export(plan, engine).export


def arguments(found: Export, folder: Path, **environment: str) -> list[str]:
    """What the launch script starts, as the program sees its arguments (its own name first)."""
    save(found, folder)
    stubs = folder / "stubs"
    stubs.mkdir()
    for name in PROGRAMS:
        stub = stubs / name
        stub.write_text(f'#!/bin/sh\nprintf "%s\\0" {name} "$@" > "$SEEN"\n')
        stub.chmod(0o755)
    seen = folder / "seen"
    path = f"{stubs}:{os.environ['PATH']}"
    subprocess.run(
        [folder / "launch.sh", "my model"],
        check=True,
        timeout=60,
        env={"PATH": path, "SEEN": str(seen), "MEGATRON_LM": "/megatron", **environment},
    )
    return seen.read_text().split("\0")[:-1]


CASES = {
    "vllm": (Degrees(dp=8, tp=2, ep=16, batch=8), "H100x16", {"HEAD_IP": "10.0.0.1", "START_RANK": "4"}),
    "sglang": (Degrees(dp=8, tp=2, ep=8, etp=2, batch=8), "H100x16", {"HEAD_IP": "10.0.0.1", "NODE_RANK": "1"}),
    "trtllm": (Degrees(dp=16, ep=8, etp=2, batch=16), "H100x16", {}),
    "megatron": (Degrees(pp=2, dp=4, tp=2, ep=8, batch=8), "H100x16", {"HEAD_IP": "10.0.0.1", "NODE_RANK": "1"}),
}


@pytest.mark.parametrize("engine", [e for e in CASES if e != "vllm"])
def test_a_launch_script_starts_the_engine(engine: str, plan_of_strategy: MakePlan, tmp_path: Path) -> None:
    degrees, cluster, environment = CASES[engine]
    argv = arguments(made(plan_of_strategy, engine, degrees, cluster), tmp_path, **environment)
    given = {a.lstrip("-") for a in argv if a.startswith("--")}
    assert given <= set(flag_list(engine)["flags"])
    assert "my model" in argv  # one argument, whatever is in it
    pairs = dict(zip(argv, argv[1:], strict=False))
    if engine == "sglang":
        assert (pairs["--nnodes"], pairs["--node-rank"], pairs["--dist-init-addr"]) == ("2", "1", "10.0.0.1:5000")
    elif engine == "trtllm":
        assert argv[:4] == ["mpirun", "-n", "16", "trtllm-llmapi-launch"]
        assert (pairs["--tp_size"], pairs["--ep_size"], pairs["--gpus_per_node"]) == ("16", "8", "8")
    else:
        assert (pairs["--nproc-per-node"], pairs["--nnodes"], pairs["--node-rank"]) == ("8", "2", "1")
        assert pairs["--expert-model-parallel-size"] == "8" and pairs["--load"] == "my model"


def parsed(engine: str, argv: list[str], folder: Path) -> dict[str, Any]:
    """The command parsed by the engine itself."""
    where = os.environ.get("AUTOSHARD_ENGINES")
    if not where or not (Path(where) / engine).is_dir():
        pytest.skip(f"AUTOSHARD_ENGINES names no folder with {engine} unpacked in it")
    (folder / "argv.json").write_text(json.dumps(argv))
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("engine_parsers.py"), engine, f"{where}/{engine}", "argv.json"],
        cwd=folder,
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": f"{where}/more"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


@pytest.mark.wide
@pytest.mark.parametrize("workload", [{}, {"kv_dtype": "fp8"}, {"dtype": "fp8"}])
def test_vllm_parses_its_command(workload: dict[str, str], plan_of_strategy: MakePlan, tmp_path: Path) -> None:
    degrees = Degrees(pp=2, dp=2, tp=2, ep=4, batch=4)
    argv = arguments(made(plan_of_strategy, "vllm", degrees, "H100x8", **workload), tmp_path)
    found = parsed("vllm", argv[1:], tmp_path)
    assert found["model_tag"] == "my model"
    sizes = ("pipeline_parallel_size", "data_parallel_size", "tensor_parallel_size")
    assert [found[n] for n in sizes] == [2, 2, 2]
    assert found["enable_expert_parallel"] is True and found["max_num_seqs"] >= 1
    assert found["kv_cache_dtype"] == ("fp8_e4m3" if "kv_dtype" in workload else "auto")
    assert found["quantization"] == workload.get("dtype")


@pytest.mark.wide
def test_vllm_parses_its_command_on_other_nodes(plan_of_strategy: MakePlan, tmp_path: Path) -> None:
    degrees, cluster, environment = Degrees(dp=4, tp=4, etp=16, batch=4), "H100x16", CASES["vllm"][2]
    argv = arguments(made(plan_of_strategy, "vllm", degrees, cluster), tmp_path, **environment)
    found = parsed("vllm", argv[1:], tmp_path)
    assert (found["data_parallel_size"], found["data_parallel_size_local"]) == (4, 2)
    assert (found["headless"], found["data_parallel_start_rank"], found["data_parallel_address"]) == (
        True,
        4,
        "10.0.0.1",
    )


@pytest.mark.wide
@pytest.mark.parametrize("workload", [{}, {"kv_dtype": "fp8"}, {"dtype": "fp8"}])
def test_sglang_parses_its_command(workload: dict[str, str], plan_of_strategy: MakePlan, tmp_path: Path) -> None:
    degrees, cluster, environment = CASES["sglang"]
    argv = arguments(made(plan_of_strategy, "sglang", degrees, cluster, **workload), tmp_path, **environment)
    found = parsed("sglang", argv[3:], tmp_path)
    assert found["model_path"] == "my model"
    assert [found[n] for n in ("tp_size", "dp_size", "ep_size", "pp_size", "nnodes")] == [16, 8, 8, 1, 2]
    assert found["enable_dp_attention"] is True and found["node_rank"] == 1
    assert found["kv_cache_dtype"] == ("fp8_e4m3" if "kv_dtype" in workload else "auto")
    assert found["quantization"] == workload.get("dtype")
