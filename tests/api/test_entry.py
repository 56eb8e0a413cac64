"""From a model, however it is named, to a plan."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.distributed.tensor import Replicate, Shard
from transformers import MixtralConfig, MixtralForCausalLM

import autoshard as package
from autoshard import Plan, Workload, autoshard
from autoshard.api.solve import make_simulator, run_search
from autoshard.errors import InvalidInputError, NoFeasiblePlanError, PlanMismatchError
from autoshard.hardware import parse_cluster
from autoshard.ir import OpGraph

SMALL = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "vocab_size": 512,
}


def exact(model: object, **options: object) -> Plan:
    return autoshard(model, "H100x8", search="exact", **options)  # type: ignore[arg-type]


def test_clusters_are_importable_names() -> None:
    from autoshard import A100x8, H100x24

    assert (A100x8.num_devices, H100x24.device.name) == (8, "H100")
    for name in ("H10x8", "nothing", "H100x", "_x8", "xx"):
        with pytest.raises(AttributeError):
            getattr(package, name)
    assert {"autoshard", "Plan", "Workload", "Cluster"} <= set(dir(package))


def test_a_model_is_the_same_however_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = MixtralConfig(**SMALL)
    data = {"model_type": "mixtral", "architectures": ["MixtralForCausalLM"], **SMALL}
    (tmp_path / "config.json").write_text(json.dumps(data))
    (tmp_path / "my_model.py").write_text(
        "import transformers\n"
        f"def build():\n    return transformers.MixtralForCausalLM(transformers.MixtralConfig(**{SMALL}))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with torch.device("meta"):
        meta = MixtralForCausalLM(config).to(torch.bfloat16)
    plans = [exact(m) for m in (config, str(tmp_path), tmp_path / "config.json", "my_model:build", meta)]
    assert len({p.data.model.structural_hash for p in plans}) == 1
    assert len({p.strategy for p in plans}) == 1
    assert all(p.data.model.source is not None for p in plans)


def test_placements_have_every_parameter_exactly_once() -> None:
    with torch.device("meta"):
        model = MixtralForCausalLM(MixtralConfig(**SMALL))
    plan = exact(model, fix="tp=8,ep=4")
    assert list(plan.placements) == list(dict.fromkeys(plan.placements))
    assert plan.placements.keys() == dict(model.named_parameters()).keys()
    for fqn, placements in plan.placements.items():
        assert len(placements) == len(plan.mesh_for(fqn).shape)
    assert plan.mesh_for("lm_head.weight").mesh_dim_names == ("dp", "tp")
    assert plan.mesh_for("model.layers.1.mlp.experts.down_proj").shape == (4, 2)


def test_fix_and_pin_hold() -> None:
    plan = exact(
        "mixtral-8x7b", fix={"tp": 4, "dp": 2, "ep": 4, "batch": 8}, pin={"q": 0, "layers/o": 0, "k": None, "v": None}
    )
    d = plan.degrees
    assert (d.tp, d.dp, d.ep, d.etp, d.batch) == (4, 2, 4, 2, 8)
    assert [plan.strategy.choice(f"layers/{op}") for op in ("q", "o", "k", "v")] == [0, 0, None, None]
    assert plan.placements["model.layers.31.self_attn.o_proj.weight"] == (Replicate(), Shard(0))
    residual = exact("mixtral-8x7b", fix="tp=4", pin="residual=0")
    assert residual.strategy.choice("model/residual") == 0


def test_stages_dealt_by_hand(tmp_path: Path) -> None:
    # 32 layers on 2 stages; the longer one of 20 decides where 16 did: (20 t + ...) / (16 t + ...), nearly 20 / 16
    fix = {"tp": 4, "dp": 1, "ep": 4, "batch": 16}
    even, uneven = (exact("mixtral-8x7b", fix={**fix, "pp": 2}), exact("mixtral-8x7b", fix=fix, stages="20,12"))
    assert even.data.stages == (16, 16) and uneven.data.stages == (20, 12) and uneven.degrees.pp == 2
    assert 1.15 < uneven.predicted.step_s / even.predicted.step_s <= 1.25
    (sent,) = uneven.data.handovers
    assert (sent.kind, sent.axis, sent.from_stage, sent.to_stage, sent.count) == ("send_recv", "pp", 0, 1, 1)
    shards = 4 if uneven.strategy.choice("model/residual") == 0 else 1
    assert sent.num_bytes == 8 * 4096 * 2 // shards  # a microbatch is 8 sequences of one token, in bfloat16
    uneven.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json").data == uneven.data
    with pytest.raises(InvalidInputError, match="deal out 31 layers, mixtral-8x7b has 32; the even partition is 16,16"):
        exact("mixtral-8x7b", stages=(20, 11))


def test_save_load_save_is_the_same_bytes(plan: Plan, tmp_path: Path) -> None:
    plan.save(tmp_path / "a.json")
    loaded = Plan.load(tmp_path / "a.json")
    loaded.save(tmp_path / "b.json")
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    assert loaded.data == plan.data
    assert loaded.placements == plan.placements
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.json", "b.json"]


@pytest.mark.parametrize("field", ["mesh", "parameters", "ops", "graph", "choices", "stages", "handovers"])
def test_a_changed_plan_is_refused(plan: Plan, tmp_path: Path, field: str) -> None:
    data = plan.to_dict()
    match field:
        case "mesh":
            data["mesh"]["dims"][1][1] *= 2
        case "parameters":
            data["parameters"]["model.layers.3.self_attn.q_proj.weight"]["placements"] = ["R", "R"]
        case "ops":
            data["ops"]["layers"][5]["collectives"] = []
        case "stages":
            data["strategy"]["stages"] = [31, 1]
        case "handovers":
            sent = {"kind": "send_recv", "axis": "pp", "group_size": 2, "num_bytes": 1, "count": 1}
            data["handovers"] = [{**sent, "from_stage": 0, "to_stage": 1}]
        case "graph":
            data["graph"]["blocks"][0]["ops"][1]["params"][0]["shape"][0] += 1
        case "choices":
            data["strategy"]["choices"] = [[k, None] for k, _ in data["strategy"]["choices"]]
    (tmp_path / "plan.json").write_text(json.dumps(data))
    with pytest.raises(PlanMismatchError):
        Plan.load(tmp_path / "plan.json")


@pytest.mark.parametrize("cluster", ["H100x24", "H100x12", "H100x7"])
def test_degrees_need_not_be_powers_of_two(graph: OpGraph, cluster: str) -> None:
    points = make_simulator(graph, parse_cluster(cluster), Workload()).points
    n = int(cluster.partition("x")[2])
    used = points.pp * points.dp * points.tp * points.replicas
    assert (used == n).all()
    if n != 7:
        assert np.isin(3, np.stack([points.pp, points.dp, points.replicas]))
    plan = autoshard("mixtral-8x7b", cluster, search="exact")
    d = plan.degrees
    assert d.num_devices * d.replicas == n


@pytest.mark.parametrize("algorithm", ["rl", "random", "megatron", "exact"])
def test_the_plan_is_never_below_megatron(algorithm: str, graph: OpGraph) -> None:
    workload = Workload(context=16384, tpot_ms=20)
    simulator = make_simulator(graph, parse_cluster("H100x16"), workload)
    _, megatron = run_search(simulator, "megatron", budget=1, seed=0)
    plan = autoshard("mixtral-8x7b", "H100x16", workload, search=algorithm, budget=100)
    assert plan.predicted.tokens_per_s_per_gpu >= megatron.throughput * (1 - 1e-12)
    assert plan.data.search.regret_to_exact == pytest.approx(0, abs=1e-12)


def test_without_polish_the_searchs_own_find_is_kept() -> None:
    plan = autoshard("mixtral-8x7b", "H100x16", search="random", budget=50, polish=False)
    assert plan.data.search.taken_from == "search"
    assert plan.predicted.tokens_per_s_per_gpu == pytest.approx(plan.data.search.found_tokens_per_s_per_gpu)
    assert (plan.data.search.regret_to_exact or 0) > 0


def test_the_same_seed_gives_the_same_plan(plan: Plan) -> None:
    again = autoshard("mixtral-8x7b", "H100x64", Workload(context=16384, tpot_ms=20), budget=300)
    assert again.data == plan.data


def test_what_cannot_be_met_says_what_would_help() -> None:
    with pytest.raises(NoFeasiblePlanError, match="does not fit on H100x1: .*what would help: 2 devices"):
        autoshard("mixtral-8x7b", "H100x1")
    with pytest.raises(NoFeasiblePlanError, match="meets TPOT <= 0.01 ms; the fastest is"):
        autoshard("mixtral-8x7b", "H100x8", Workload(tpot_ms=0.01))
    with pytest.raises(InvalidInputError, match="unknown model 'mixtral'"):
        autoshard("mixtral", "H100x8")
    with pytest.raises(InvalidInputError, match="got int"):
        autoshard(3, "H100x8")
