"""What commands print: one JSON object with the fixed keys, or tables made of the same numbers."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from autoshard import Plan

ARGUMENTS = ("mixtral-8x7b", "--context", "16384", "--tpot-ms", "20", "--budget", "300")
BOTH = "import sys; from autoshard.cli import main; main()"


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict, Path, str]:
    """A plan made in a process of its own: its JSON, its file, what was on stderr."""
    path = tmp_path_factory.mktemp("plans") / "plan.json"
    command = [sys.executable, "-c", BOTH, "plan", *ARGUMENTS, "-o", str(path), "--json"]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(ran.stdout), path, ran.stderr


def test_plan_prints_one_object_and_nothing_else(planned) -> None:  # type: ignore[no-untyped-def]
    data, path, errors = planned
    assert errors == ""
    assert data["model"] == {
        "name": "mixtral-8x7b",
        "class": "MixtralForCausalLM",
        "parameters": 46_702_792_704,
        # Of 8 experts a token visits 2: 46.70 B less 6/8 of 32 * 8 * 3 * 4096 * 14336.
        "active_parameters": 46_702_792_704 - 32 * 6 * 3 * 4096 * 14336,
    }
    assert list(data["degrees"]) == ["pp", "dp", "tp", "ep", "etp", "batch", "replicas"]
    assert data["degrees"]["tp"] > 1
    assert set(data["choices"].values()) <= {0, 1, None}
    assert {"layers/q", "layers/experts_down", "epilogue/head"} <= data["choices"].keys()
    predicted = data["predicted"]
    memory = predicted["memory_bytes"]
    assert memory["total"] == pytest.approx(sum(v for k, v in memory.items() if k != "total"))
    assert predicted["tokens_per_s_per_gpu"] == pytest.approx(predicted["tokens_per_s"] / 64)
    assert predicted["tpot_s"] <= 0.020 and predicted["ttft_s"] is None
    assert sum(t["seconds"] for t in predicted["terms"]) == pytest.approx(predicted["step_s"])
    search = data["search"]
    assert {
        "algorithm",
        "seed",
        "calls",
        "seconds",
        "regret_to_exact",
        "exact_tokens_per_s_per_gpu",
        "rl_regret",
    } <= set(search)
    assert search["calls"] <= 300 and search["regret_to_exact"] < 1e-9 <= 1.0
    assert data["binding"] and data["alternatives"]
    assert data["plan_file"] == str(path)


def test_every_linear_keeps_three_choices_or_says_why(planned) -> None:  # type: ignore[no-untyped-def]
    data, _, _ = planned
    legal = data["space"]["legal_choices"]
    linear = {k: v for k, v in legal.items() if v["kind"] in ("linear", "experts", "router", "embedding")}
    assert len(linear) == 9
    for own in linear.values():
        assert len(own["legal"]) + len(own["excluded"]) == 3
        assert all(e["reason"] for e in own["excluded"])


def test_the_plan_file_holds_the_same_plan_and_no_timing(planned) -> None:  # type: ignore[no-untyped-def]
    data, path, _ = planned
    assert "seconds" not in json.loads(path.read_text())["search"]
    plan = Plan.load(path)
    assert dict(plan.strategy.choices) == data["choices"]
    assert plan.predicted.tokens_per_s == data["predicted"]["tokens_per_s"]


def test_plan_for_people(command, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "plan.json"
    ran = command("plan", *ARGUMENTS, "--search", "exact", "-o", str(path))
    assert (ran.code, ran.err) == (0, "")
    lines = [line.rstrip() for line in ran.out.splitlines()]
    assert max(map(len, lines)) <= 100
    for words in (
        "degrees      pp",
        "tokens/s/GPU",
        "TPOT  ",
        "weights",
        "binds",
        "optimum",
        "degree points",
        "next best",
    ):
        assert words in ran.out
    assert any(line.startswith("  o ") and "all_reduce tp(" in line for line in lines)
    assert lines[-1] == f"written to {path}"


def test_trace(command) -> None:  # type: ignore[no-untyped-def]
    data = json.loads(command("trace", "mixtral-8x7b", "--json").out)
    assert data["parameters"] == 46_702_792_704
    params = [p for b in data["blocks"] for op in b["ops"] for p in op["params"]]
    by_block = sum(
        b["repeat"] * sum(_numel(p["shape"]) for op in b["ops"] for p in op["params"]) for b in data["blocks"]
    )
    assert by_block == data["parameters"]
    assert {p["dtype"] for p in params} == {"bfloat16"}
    # Two matrices of 8 kv heads * 128 in each of 32 layers, in 2 bytes.
    assert data["kv_bytes_per_token"] == 2 * 8 * 128 * 32 * 2
    assert (data["opaque"], data["opaque_flops_share"]) == ([], 0.0)
    out = command("trace", "mixtral-8x7b").out
    assert "layers  ×32" in out and "self_attn.q_proj.weight (4096, 4096)" in out


def test_simulate_opens_one_strategy_into_terms(command) -> None:  # type: ignore[no-untyped-def]
    arguments = ("simulate", "mixtral-8x7b", "--fix", "tp=8,pp=1,ep=8,batch=64", "--pin", "o=0,residual=none")
    data = json.loads(command(*arguments, "--json").out)
    assert (data["feasible"], data["reasons"]) == (True, [])
    assert data["degrees"] == {"pp": 1, "dp": 1, "tp": 8, "ep": 8, "etp": 1, "batch": 64, "replicas": 8}
    assert data["choices"]["layers/o"] == 0
    assert sum(data["terms"].values()) == pytest.approx(data["predicted"]["tpot_s"])
    tight = json.loads(command(*arguments, "--tpot-ms", "1", "--context", "524288", "--json").out)
    assert not tight["feasible"]
    assert [r.partition(":")[0] for r in tight["reasons"]] == ["memory", "TPOT"]
    assert "feasible     no" in command(*arguments, "--tpot-ms", "1").out


def test_simulate_agrees_with_plan(command, planned) -> None:  # type: ignore[no-untyped-def]
    plan, _, _ = planned
    fix = ",".join(f"{k}={v}" for k, v in plan["degrees"].items())
    pin = ",".join(f"{k}={'none' if v is None else v}" for k, v in plan["choices"].items())
    data = json.loads(command("simulate", *ARGUMENTS[:5], "--fix", fix, "--pin", pin, "--json").out)
    assert data["predicted"]["tokens_per_s"] == pytest.approx(plan["predicted"]["tokens_per_s"], rel=1e-12)


def test_compare(command) -> None:  # type: ignore[no-untyped-def]
    arguments = ("compare", *ARGUMENTS[:5], "--cluster", "H100x16", "--seeds", "2", "--budget", "150")
    data = json.loads(command(*arguments, "--methods", "rl,megatron,random,exact", "--json").out)
    assert list(data["methods"]) == ["rl", "megatron", "random", "exact"]
    optimum = data["exact"]["tokens_per_s_per_gpu"]
    for name, method in data["methods"].items():
        assert len(method["runs"]) == (2 if name in ("rl", "random") else 1)
        for run in method["runs"]:
            assert run["regret"] == max(0.0, 1 - run["tokens_per_s_per_gpu"] / optimum)
            assert run["tokens_per_s_per_gpu"] <= optimum * (1 + 1e-9)
        assert method["median_regret"] <= method["worst_regret"]
    assert data["methods"]["exact"]["worst_regret"] == 0
    assert "worst regret" in command(*arguments, "--methods", "megatron").out


def test_models(command) -> None:  # type: ignore[no-untyped-def]
    data = json.loads(command("models", "--json").out)
    assert {"mixtral-8x7b", "gpt-moe-1.6t"} <= {m["name"] for m in data["models"]}
    assert "mixtral-8x7b" in command("models").out


def test_importing_the_package_and_the_commands_imports_no_torch() -> None:
    code = "import sys, autoshard, autoshard.cli; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_our_bug_is_a_traceback_and_exit_code_1() -> None:
    code = (
        "import autoshard.catalogue as c; c.entries = lambda: 1 / 0\nfrom autoshard.cli import main; main(['models'])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert "ZeroDivisionError" in ran.stderr


def _numel(shape: list[int]) -> int:
    total = 1
    for n in shape:
        total *= n
    return total
