"""``check`` as programs call it: keys, what is left free, defaults, what it refuses, and what it says would help."""

import json
from pathlib import Path
from typing import Any

import pytest

import autoshard
from autoshard.api.check import describe
from autoshard.api.relax import looser_ms
from autoshard.api.solve import make_simulator, solve
from autoshard.api.verdict import judge, make_request
from autoshard.engines.facts import model_facts
from autoshard.errors import InvalidInputError, NoFeasiblePlanError
from autoshard.hardware import parse_cluster
from autoshard.ir import OpGraph
from autoshard.simulator import Simulator
from autoshard.workload import Workload
from tests import traced as store
from tests.traced import traced


def asked(model: str, cluster: str, **given: Any) -> dict[str, Any]:
    return describe(judge(make_request(traced(model), cluster, **given)))


def test_a_legal_layout_that_fits() -> None:
    data = autoshard.check("mixtral-8x7b", "H100x8", fix="tp=8,ep=8", engine="vllm")
    assert (data["legal"], data["fits"], data["reasons"], data["nearest"]) == (True, True, [], [])
    assert data["engine"] == {"name": "vllm", "title": "vLLM", "version": "0.14.1"}
    assert data["degrees"] == {"pp": 1, "dp": 1, "tp": 8, "ep": 8, "etp": 1, "replicas": 1}
    # one of 8 experts a rank, 32 layers of 3 matrices 4096 x 14336 in 16 bits
    assert data["memory_bytes"]["weights_by_part"]["experts"] == 32 * 3 * 4096 * 14336 * 2
    json.dumps(data, allow_nan=False)


def test_all_reasons_are_named_and_the_nearest_works() -> None:
    data = autoshard.check("mixtral-8x7b", "H100x8", fix={"tp": 3, "ep": 3, "pp": 5})
    assert not data["legal"]
    rules = {r["rule"]: r for r in data["reasons"]}
    assert rules.keys() == {"devices", "heads % tp", "experts % ep"}
    assert rules["devices"]["values"] == {"pp": 5, "dp": 1, "tp": 3, "replicas": 1, "devices": 8}
    assert rules["heads % tp"]["values"] == {"heads": 32, "tp": 3}
    assert rules["experts % ep"]["message"] == "ep=3 does not divide 8 experts; nearest ep that does: 2"
    for plan in data["nearest"]:
        again = autoshard.check("mixtral-8x7b", "H100x8", fix=plan["degrees"])
        assert again["legal"] and again["fits"]
        assert plan["changed"]


def test_what_is_not_fixed_is_free() -> None:
    # vLLM has ep 1 or ep = tp * dp: some completion of tp 4 is legal, ep 2 within tp 4 is not.
    assert asked("qwen3-30b-a3b", "H100x8", engine="vllm", fix="tp=4")["legal"]
    assert not asked("qwen3-30b-a3b", "H100x8", engine="vllm", fix="tp=4,dp=1,ep=2")["legal"]
    # fp8 blocks forbid etp 4 of 768; free, ep 4 is found
    found = asked("qwen3-30b-a3b", "H100x4", engine="vllm", quant="fp8_block", fix="tp=4")
    assert found["legal"] and found["degrees"]["ep"] == 4
    # nothing fixed at all: the smallest replica that fits
    assert asked("qwen3-30b-a3b", "H100x8")["degrees"] == {"pp": 1, "dp": 1, "tp": 1, "ep": 1, "etp": 1, "replicas": 8}
    assert asked("deepseek-v3", "H200x8", quant="fp8")["degrees"]["tp"] == 8


def test_legality_and_fitting_are_apart() -> None:
    neither = asked("deepseek-v3", "H100x8", engine="vllm", fix="tp=3", quant="fp8")
    assert not neither["legal"] and not neither["fits"]
    assert {"heads % tp", "memory"} <= {r["rule"] for r in neither["reasons"]}
    illegal = asked("qwen3-30b-a3b", "H100x8", engine="vllm", fix="tp=3")
    assert not illegal["legal"] and illegal["fits"]
    full = asked("qwen3-30b-a3b", "H100x1", engine="vllm", context=1_000_000)
    assert full["legal"] and not full["fits"]
    reason = full["reasons"][0]
    # 98,304 bytes a token: 91.6 GiB for a million
    assert reason["values"]["request_gib"] == pytest.approx(98_304 * 1_000_000 / 2**30, rel=1e-4)


def test_what_would_help_is_tried() -> None:
    data = asked("qwen3-30b-a3b", "H100x1", engine="vllm", context=1_000_000)
    changes = {r["change"]: r["value"] for r in data["relaxations"]}
    # weights 56.9, budget 71.3 - 56.9 - 4.3 - 1.8 = 8.3 GiB = 90,700 tokens: 62,500 is the first half that fits, and
    # seven sixteenths (of 3,906) more still do
    assert changes["context"] == 62_500 + 7 * 3_906
    assert asked("qwen3-30b-a3b", "H100x1", engine="vllm", context=89_842)["fits"]
    assert not asked("qwen3-30b-a3b", "H100x1", engine="vllm", context=89_842 + 3_906)["fits"]
    more = changes["devices"]
    assert asked("qwen3-30b-a3b", f"H100x{more}", engine="vllm", context=1_000_000)["fits"]
    assert not asked("qwen3-30b-a3b", f"H100x{more - 1}", engine="vllm", context=1_000_000)["fits"]
    assert "weights" not in changes  # 8 bits free 28 GiB, a request takes 91.6


def test_the_config_says_how_it_is_quantised(tmp_path: Path) -> None:
    config = dict(store.configs()["llama-3.2-1b"]["config"])
    config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    assert autoshard.check(str(path), "H100x1")["quant"] == "fp8_block"
    assert autoshard.check(str(path), "H100x1", quant="bf16")["quant"] == "bf16"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"engine": "vlm"}, "unknown engine 'vlm'"),
        ({"engine": "vllm", "version": "0.5"}, "known for versions"),
        ({"quant": "fp6"}, "unknown quantisation 'fp6'"),
        ({"fix": "tpp=2"}, "cannot fix 'tpp'"),
        ({"context": 0}, "context must be a whole number"),
        ({"kv_dtype": "fp1"}, "unknown dtype 'fp1'"),
        ({"engine": "vllm", "options": "turbo=1"}, "vllm has no option 'turbo': known are mtp"),
        ({"engine": "vllm", "options": "mtp=one"}, "option mtp=one must be a number"),
        ({"engine": "vllm", "options": "fraction=1.5"}, "option fraction=1.5 must be from 0 to 1"),
        ({"engine": "vllm", "options": {"mtp": float("nan")}}, "option mtp=nan must be from 0"),
        ({"fix": {"tp": 10**30}}, "is more than 1,000,000,000"),
        ({"options": "mtp"}, "cannot read 'mtp' of --option 'mtp'"),
    ],
)
def test_mistakes(given: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidInputError, match=says):
        asked("llama-3.2-1b", "H100x2", **given)


def test_a_limit_that_cannot_be_met_names_one_that_can() -> None:
    graph, cluster = traced("llama-3.2-1b"), parse_cluster("H100x1")
    with pytest.raises(
        NoFeasiblePlanError, match=r"meets TPOT <= 0.2 ms; .* what would help: TPOT <= ([\d.]+) ms"
    ) as e:
        solve(make_simulator(graph, cluster, Workload(tpot_ms=0.2)), algorithm="exact")
    limit = float(str(e.value).split("help: TPOT <= ")[1].split(" ms")[0])
    assert solve(make_simulator(graph, cluster, Workload(tpot_ms=limit)), algorithm="exact").exact is not None
    with pytest.raises(NoFeasiblePlanError):  # a hundredth less does not do
        solve(make_simulator(graph, cluster, Workload(tpot_ms=limit * 0.99)), algorithm="exact")
    assert looser_ms(0.0012341) == pytest.approx(1.24)
    assert looser_ms(0.0012) == pytest.approx(1.2)


def test_a_fixed_degree_that_binds_is_named() -> None:
    graph, cluster = traced("qwen3-30b-a3b"), parse_cluster("H100x2")
    fixed = {"tp": 1, "batch": 1024}
    with pytest.raises(NoFeasiblePlanError, match=r"KV \d.*what would help: leaving batch free"):
        make_simulator(graph, cluster, Workload(), fixed=fixed)
    assert Simulator(graph, cluster, Workload(), fixed={"tp": 1}).any_fits


def _summary(graph: OpGraph) -> dict[str, Any]:
    """What the tests of stored graphs rest on: facts of rules, and every block's parameters and cache."""
    blocks = {
        block.name: (
            block.repeat,
            sorted((op.kind, p.fqn, p.shape, p.dtype, p.shared_with) for op in block.ops for p in op.params),
        )
        for block in graph.components()
    }
    kept = (graph.num_parameters, graph.kv_bytes_per_token(), graph.state_bytes_per_sequence(), graph.layers)
    return {"class": graph.model_class, "facts": model_facts(graph), "blocks": str(blocks), "kept": kept}


@pytest.mark.wide
@pytest.mark.parametrize("name", store.NAMES)
def test_stored_traces_are_what_the_real_classes_give(name: str) -> None:
    assert _summary(store.trace_again(name)) == _summary(traced(name)), "run python -m tests.traced"
