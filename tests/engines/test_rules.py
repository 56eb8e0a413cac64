"""Engine files are data: what they may hold, how versions and formats are read, and that every rule can be asked."""

import pytest

from autoshard.api.verdict import make_request
from autoshard.engines import Judge, engine_names, engine_version, find_scheme, read_engine, scheme_of_config, schemes
from autoshard.engines.expression import Expression
from autoshard.errors import InvalidInputError
from autoshard.units import GIB
from autoshard.versions import in_range
from tests.traced import traced

KINDS = ("gpt-oss-20b", "qwen3-next-80b-a3b", "deepseek-v3", "glm-4.5-air", "llama-3.2-1b", "deepseek-v4-flash")


@pytest.mark.parametrize(
    "text",
    ["__import__('os')", "().__class__", "[x for x in y]", "f(1)", "lambda: 1", "a.b", "x[0]", "min(a, key=b)", "1 +"],
)
def test_an_expression_is_arithmetic_only(text: str) -> None:
    with pytest.raises(InvalidInputError, match="expression"):
        Expression(text)


def test_an_expression_reads_facts() -> None:
    e = Expression("round_up(vocab, 64) % tp == 0 if tp > 1 else 1")
    assert e.names() == {"vocab", "tp"}
    assert e.value({"vocab": 100, "tp": 2})  # 128 % 2
    assert not e.value({"vocab": 100, "tp": 3})  # 128 % 3 = 2
    with pytest.raises(KeyError, match="vocab"):
        e.value({"tp": 2})


@pytest.mark.parametrize(
    ("version", "limits", "inside"),
    [
        ("0.10.1", ">=0.9,<0.27", True),
        ("0.27.0rc1", "<0.27", False),
        ("0.9", ">=0.10", False),
        ("v1.2.3", "==1.2.3", True),
        ("1.2", "<=1.2.0", True),
        ("3", "", True),
    ],
)
def test_versions_are_compared_by_number(version: str, limits: str, inside: bool) -> None:
    assert in_range(version, limits) is inside


def test_a_version_outside_the_file_is_refused() -> None:
    vllm = read_engine("vllm")
    assert engine_version(vllm, None) == vllm.written_for == "0.14.1"
    with pytest.raises(InvalidInputError, match=r"known for versions >=0.9,<0.28, not 0.6.2"):
        engine_version(vllm, "0.6.2")
    with pytest.raises(InvalidInputError, match="cannot read the version 'new'"):
        engine_version(vllm, "new")
    with pytest.raises(InvalidInputError, match="unknown engine 'llama.cpp': known are sglang, torch"):
        read_engine("llama.cpp")


def test_formats_by_hand() -> None:
    # 300 x 200 in blocks of 128: 3 x 2 scales of 4 bytes
    assert find_scheme("fp8_block").matrix_bytes((300, 200)) == (60_000, 24)
    assert find_scheme("fp8_block").matrix_bytes((5, 300, 200)) == (300_000, 120)
    # 4 bits, an e8m0 byte for each 32
    assert find_scheme("mxfp4").matrix_bytes((64, 64)) == (2048, 128)
    assert find_scheme("nvfp4").matrix_bytes((64, 64)) == (2048, 256)
    assert find_scheme("AWQ").matrix_bytes((128, 128)) == (8192, 320)  # 128 groups of 2.5 bytes
    assert find_scheme("bf16").matrix_bytes((4, 4)) == (32, 0)
    with pytest.raises(InvalidInputError, match="unknown quantisation 'fp7': known are bf16"):
        find_scheme("fp7")


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (None, "bf16"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8_block"),
        ({"quant_method": "fp8"}, "fp8"),
        ({"quant_method": "mxfp4"}, "mxfp4"),
        ({"quant_method": "gptq", "bits": 4}, "int4"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4"),
    ],
)
def test_the_format_a_config_states(config: dict[str, object] | None, name: str) -> None:
    assert scheme_of_config(config).name == name


def test_an_unknown_format_has_to_be_said() -> None:
    with pytest.raises(InvalidInputError, match="quantised by 'quip': say what that means"):
        scheme_of_config({"quant_method": "quip"})


@pytest.mark.parametrize("engine", engine_names())
def test_every_rule_can_be_asked_of_every_kind_of_model(engine: str) -> None:
    profile = read_engine(engine)
    assert set(profile.memory.source) <= set(type(profile.memory).model_fields)
    for rule in profile.rules:
        assert rule.source, rule.name
        assert rule.values, rule.name
    asked = set()
    for model in KINDS:
        for quant in schemes():
            for version in {profile.written_for, profile.versions.split(",")[0].removeprefix(">=")}:
                request = make_request(traced(model), "A100x16", engine=engine, version=version, quant=quant)
                for d in ((1, 1, 3, 3, 1), (2, 8, 5, 2, 20)):
                    found = Judge(request.launch).findings(**dict(zip(("pp", "dp", "tp", "ep", "etp"), d, strict=True)))
                    asked |= {f.rule for f in found}
                    assert all("{" not in f.message for f in found)
    assert "devices" in asked


def test_a_device_file_is_enough_for_the_rules() -> None:
    request = make_request(traced("phi-3.5-moe"), "MI300Xx8", engine="vllm", fix="tp=8")
    assert Judge(request.launch).findings(pp=1, dp=1, tp=8, ep=1, etp=8) == ()
    assert request.launch.cluster.device.memory_bytes > 180 * GIB
