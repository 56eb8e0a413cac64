"""What a config says beyond the decoder that its class builds: extra prediction layers, and how weights are stored."""

import pytest

from autoshard.tracing import resolve
from autoshard.tracing.facts import config_facts
from tests.tracing.families import FAMILIES

KEYS = ["num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules", "num_mtp_layers"]


def _facts(family, **given):
    source = resolve({"model_type": "deepseek_v3", **FAMILIES["deepseek_v3"], **given})
    return config_facts(source, family("deepseek_v3"))


@pytest.mark.parametrize("key", KEYS)
def test_prediction_layers_are_counted_beside_the_model(family, key):
    # A mixture layer: attention with its norms 18,728 (see test_families), two norms of 64, router 64 x 8, eight
    # experts and a shared one of 3 x 64 x 32; before it a matrix 2 x 64 -> 64 and two norms of 64, after it one.
    layer = 18_728 + 2 * 64 + 64 * 8 + 9 * 3 * 64 * 32
    assert _facts(family, **{key: 2})["mtp"] == {"layers": 2, "parameters": 2 * (layer + 2 * 64 * 64 + 3 * 64)}


@pytest.mark.parametrize("value", [0, None, "many", -1])
def test_no_prediction_layers(family, value):
    assert _facts(family, num_nextn_predict_layers=value)["mtp"] is None


def test_quantisation_of_the_config(family):
    given = {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "weight_block_size": [128, 128],
        "modules_to_not_convert": ["lm_head"],
    }
    expected = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128], "kept": 1}
    assert _facts(family, quantization_config=given)["quantization"] == expected
    assert _facts(family)["quantization"] is None
