import json

import pytest
import torch
from autoshard_models import CATALOGUE
from autoshard_models.gpt_moe import GPTMoE, GPTMoEConfig, build
from torch import nn

from autoshard.errors import InvalidInputError, UnsupportedModelError
from autoshard.tracing import ConfigSource, FactorySource, ModuleSource, resolve, source_from_dict

MIXTRAL = dict(CATALOGUE["mixtral-8x7b"].config)
SIZES = {**CATALOGUE["gpt-moe-7b"].config, "num_hidden_layers": 2}


@pytest.mark.parametrize("name", ["mixtral-8x7b", "gpt-moe-7b"])
def test_sources_survive_json(name):
    source = resolve(CATALOGUE[name])
    assert source_from_dict(json.loads(json.dumps(source.to_dict()))) == source


def test_a_path_a_folder_a_config_a_dict_and_a_module_say_the_same(tmp_path):
    from transformers import MixtralConfig, MixtralForCausalLM

    (tmp_path / "config.json").write_text(json.dumps(MIXTRAL))
    config = MixtralConfig(**{k: v for k, v in MIXTRAL.items() if k not in ("model_type", "architectures")})
    with torch.device("meta"):
        module = MixtralForCausalLM(config)
    for spec in (tmp_path, str(tmp_path / "config.json"), MIXTRAL, config, module):
        source = resolve(spec)
        assert isinstance(source, ConfigSource) and source.class_name == "MixtralForCausalLM"
        assert sum(p.numel() for p in source.build().parameters()) == 46_702_792_704
        json.dumps(source.to_dict())


def test_plain_modules_are_known_by_their_dataclass_config():
    with torch.device("meta"):
        module = build(**SIZES)
    source = resolve(module)
    assert isinstance(source, FactorySource)
    again = source_from_dict(json.loads(json.dumps(source.to_dict()))).build()
    assert isinstance(again, GPTMoE)
    assert again.config == GPTMoEConfig(**SIZES)


def test_undescribed_modules_can_be_traced_only():
    source = resolve(nn.Linear(2, 2))
    assert isinstance(source, ModuleSource)
    assert source.build().weight.device.type == "meta"
    for use in (source.to_dict, source.reduced):
        with pytest.raises(UnsupportedModelError):
            use()


def test_code_in_a_config_is_never_run(tmp_path):
    (tmp_path / "modeling_evil.py").write_text("raise SystemExit('ran')")
    evil = {
        **MIXTRAL,
        "auto_map": {"AutoConfig": "modeling_evil.C", "AutoModelForCausalLM": "modeling_evil.M"},
        "trust_remote_code": True,
        "_attn_implementation": "someone/kernel",
        "attn_implementation": "someone/kernel",
    }
    (tmp_path / "config.json").write_text(json.dumps(evil))
    assert resolve(tmp_path).build().config._attn_implementation == "sdpa"


BROKEN = [
    ({"hidden_size": "4096"}, "hidden_size must be an integer, got '4096'"),
    ({"num_local_experts": 8.0}, "num_local_experts must be an integer"),
    ({"num_attention_heads": 0}, "num_attention_heads must be at least 1"),
    ({"num_hidden_layers": -1}, "num_hidden_layers must be at least 1"),
    ({"hidden_size": 4100}, "the nearest that works is 4096"),
    ({"num_key_value_heads": 5}, "must divide num_attention_heads .32.; the nearest that works is 4"),
    ({"num_experts_per_tok": 9}, "experts per token .9. must not exceed the experts .8."),
    ({"num_local_experts": 0}, "must not exceed the experts .0."),
    ({"hidden_act": ["silu"]}, "hidden_act"),
    ({"rope_parameters": {"rope_type": ["default"]}}, "rope type"),
    ({"hidden_act": "sillu"}, "the nearest known is 'silu'"),
    ({"rope_scaling": {"rope_type": "yarm", "factor": 2.0}}, "the nearest known is 'yarn'"),
    ({"rope_theta": "x"}, "rope_theta must be a positive number"),
    ({"vocab_size": None}, "has no vocab_size"),
    ({"rms_norm_eps": "a"}, "field 'rms_norm_eps'"),
    ({"model_type": "mixtrall", "architectures": None}, "the nearest known is 'mixtral'"),
    ({"model_type": None, "architectures": None}, "neither model_type nor architectures"),
]


@pytest.mark.parametrize(("changes", "message"), BROKEN, ids=[str(c) for c, _ in BROKEN])
def test_broken_configs_get_one_line_about_the_rule(changes, message):
    with pytest.raises((InvalidInputError, UnsupportedModelError), match=message) as caught:
        resolve({**MIXTRAL, **changes}).build()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("missing", ["hidden_size", "num_hidden_layers", "vocab_size", "intermediate_size"])
def test_missing_sizes_are_not_defaulted(missing):
    with pytest.raises(InvalidInputError, match=f"has no {missing}"):
        resolve({k: v for k, v in MIXTRAL.items() if k != missing})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"model_type": "mixtral",\n oops}', "is not JSON: line 2, column 2"),
        ("[1]", "holds a list, a config is an object"),
        ("{}", "neither model_type nor architectures"),
    ],
)
def test_broken_files_say_where(tmp_path, text, message):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(InvalidInputError, match=message):
        resolve(tmp_path)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (3, "got int"),
        ("nope", "'nope' is neither a file or folder"),
        ("nomodule.x:y", "cannot import nomodule.x"),
        ("autoshard_models.gpt_moe:nope", "has no 'nope'"),
        ("autoshard_models.gpt_moe:build", "missing 9 required"),
        ("builtins:dict", "must return a torch.nn.Module, got dict"),
    ],
)
def test_what_names_no_model_is_refused(spec, message):
    with pytest.raises(InvalidInputError, match=message):
        resolve(spec).build()


def test_seeded_weights_depend_on_the_seed_and_the_name_only():
    source = resolve(CATALOGUE["mixtral-8x7b"]).reduced()
    one, two = source.build("cpu", "float64", seed=1, experts="eager"), source.build("cpu", "float32", seed=1)
    other = source.build("cpu", "float32", seed=2)
    for (name, a), b, c in zip(one.named_parameters(), two.parameters(), other.parameters(), strict=True):
        assert torch.equal(a.float(), b), name
        assert not torch.equal(b, c), name
        assert a.std() > 0.01, name
