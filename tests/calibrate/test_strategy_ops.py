"""Times of one rank's ops: the shapes are those of the plan's share, worked out by hand; seconds are only positive."""

import json
from pathlib import Path

import pytest

from autoshard import autoshard
from autoshard.calibrate.measure import time_strategy
from autoshard.sharding import Degrees
from autoshard.sharding.patterns import pattern_strategy
from tests.validate.sources import graph_of


def test_shapes_of_one_rank() -> None:
    graph = graph_of("mixtral")
    strategy = pattern_strategy(graph, Degrees(dp=2, tp=2, ep=2, etp=2, batch=8), "megatron")
    found = time_strategy(graph, strategy, sequences=4, length=1, context=32, device="cpu")
    by_op = {(t.block, t.op): t for t in found}
    shapes = {op: t.shapes for (block, op), t in by_op.items() if block == "layers"}
    assert shapes["q"] == "4 x 32 x 64"  # 64 rows of q over tp 2
    assert shapes["o"] == "4 x 64 x 32"
    assert shapes["attention"] == "4 x 4 heads on 32 x 2 kv heads"  # 8 and 4 heads over tp 2
    # 4 tokens of each of 2 dp ranks, 2 experts each: 16 pairs, half of them for this rank's 4 of 8 experts
    assert shapes["experts_up"] == "8 rows on 4 x 64 x 96"  # gate and up of 96, over etp 2
    assert shapes["experts_down"] == "8 rows on 4 x 48 x 64"
    assert shapes["router"] == "4 x 8 x 64" and shapes["attn_norm"] == "4 x 64"
    assert all(t.measured_s is not None and t.measured_s > 0 for t in found)
    assert {t.repeat for t in found if t.block == "layers"} == {2}


@pytest.mark.wide
def test_what_cannot_be_timed_alone_says_so() -> None:
    from autoshard.tracing import resolve, trace_source
    from tests.tracing.families import FAMILIES

    graph = trace_source(resolve({"model_type": "jamba", **FAMILIES["jamba"]}))
    strategy = pattern_strategy(graph, Degrees(tp=2, etp=2), "replicated")
    found = time_strategy(graph, strategy, sequences=1, length=1, context=8, device="cpu")
    mixers = [t for t in found if t.kind == "mixer"]
    assert mixers and all(t.measured_s is None and t.reason == "a mixer is not timed alone" for t in mixers)


def test_a_plan_has_a_prediction_beside_every_time(tmp_path: Path) -> None:
    from autoshard.api.validation import op_times

    config = tmp_path / "config.json"
    small = {"model_type": "mixtral", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
    small |= {"num_attention_heads": 8, "num_key_value_heads": 4, "num_local_experts": 8, "vocab_size": 256}
    small |= {"num_experts_per_tok": 2}
    config.write_text(json.dumps({**small, "architectures": ["MixtralForCausalLM"]}))
    plan = autoshard(str(config), "H100x4", search="exact", fix="tp=4,pp=1,ep=1,batch=4", pin="o=1,experts_down=1")
    tier = op_times(plan, plan.strategy, "cpu")
    assert (tier["device"], tier["predicted_for"]) == ("cpu", "H100")
    assert {"q", "o", "attention", "experts_up"} <= {t["op"] for t in tier["ops"] if t["predicted_s"]}
    assert tier["collectives"] and all(c["measured_s"] is None for c in tier["collectives"])
