"""Quantised experts: what ranks load on blocks with their scales is the whole model's weight, dequantised and cut."""

import json
from pathlib import Path

import pytest
import torch

from autoshard import emit
from autoshard.api.validation import validate
from autoshard.emit.checkpoint import load_weights
from autoshard.emit.checkpoint.dequantise import QuantisedTensor, read_stored, with_quantised
from autoshard.emit.checkpoint.files import Reader, read_folder
from autoshard.emit.checkpoint.regions import Overlap
from autoshard.errors import InvalidInputError
from autoshard.sharding import Degrees
from autoshard.sharding.patterns import pattern_strategy
from autoshard.tracing import ConfigSource, trace_source
from autoshard.validate.quantised import (
    dequantise_fp8,
    dequantise_mxfp4,
    load_reference,
    quantise_fp8,
    quantise_mxfp4,
    write_checkpoint,
)
from tests.emit.test_checkpoint import assert_same_shards, rank_of_four

_SIZES = {
    "vocab_size": 128,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
    "head_dim": 16,
}
FP8 = {"quant_method": "fp8", "weight_block_size": [8, 16]}
SOURCES = {
    "fp8": ConfigSource(
        name="fp8",
        class_name="Qwen3MoeForCausalLM",
        config={
            **_SIZES,
            "moe_intermediate_size": 64,
            "intermediate_size": 96,
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "quantization_config": FP8,
        },
    ),
    "mxfp4": ConfigSource(
        name="mxfp4",
        class_name="GptOssForCausalLM",
        config={
            **_SIZES,
            "intermediate_size": 128,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
            "layer_types": ["sliding_attention", "full_attention"],
            "sliding_window": 8,
            "quantization_config": {"quant_method": "mxfp4"},
        },
    ),
}


def test_fp8_by_hand() -> None:
    # Blocks of 2 x 2 of a 3 x 2 matrix: the largest magnitudes are 4 and 448, so the scales are 4 / 448 and 1.
    weight = torch.tensor([[1.0, -2.0], [4.0, 0.0], [448.0, 2.0]])
    codes, scales = quantise_fp8(weight, (2, 2))
    assert scales.tolist() == [[pytest.approx(4 / 448)], [1.0]]
    assert codes.float().tolist() == [[112.0, -224.0], [448.0, 0.0], [448.0, 2.0]]
    assert torch.allclose(dequantise_fp8(codes, scales, (2, 2)), weight)


def test_mxfp4_by_hand() -> None:
    # One expert of 32 x 1: the largest is 12, 8 <= 12 < 16, so the exponent is 3 - 2 = 1; 12 / 2 = 6, the largest code.
    values = [12.0, -1.0, 3.0, 2.9, *[0.0] * 28]  # halves: 6, -0.5, 1.5, 1.45 (nearest 1.5): codes 7, 8 + 1, 3, 3
    codes, scales = quantise_mxfp4(torch.tensor(values)[None, :, None])
    assert scales.tolist() == [[[128]]]
    assert codes[0, 0, 0, :2].tolist() == [7 + 16 * 9, 3 + 16 * 3]
    back = dequantise_mxfp4(codes, scales)
    assert back.shape == (1, 32, 1) and back[0, :4, 0].tolist() == [12.0, -1.0, 3.0, 3.0]


def test_mxfp4_is_transformers() -> None:
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    generator = torch.Generator().manual_seed(0)
    codes = torch.randint(256, (2, 6, 3, 16), generator=generator, dtype=torch.uint8)
    scales = torch.randint(110, 140, (2, 6, 3), generator=generator, dtype=torch.uint8)
    theirs = convert_moe_packed_tensors(codes, scales, dtype=torch.float32)
    assert torch.equal(dequantise_mxfp4(codes, scales), theirs)


@pytest.fixture(scope="module", params=["fp8", "mxfp4"])
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    form: str = request.param
    folder = tmp_path_factory.mktemp(form)
    source = SOURCES[form]
    model = source.build(device="cpu", dtype="float32", seed=1)
    block = (8, 16) if form == "fp8" else (1, 32)
    counts = write_checkpoint(model, trace_source(source), form, block, folder)  # type: ignore[arg-type]
    # fp8: 2 layers of q k v o and 8 experts of gate, up, down. mxfp4: 2 layers of gate_up and down.
    assert counts["quantised"] == (2 * (4 + 8 * 3) if form == "fp8" else 2 * 2)
    return form, folder


def test_a_box_is_a_part_of_the_whole_wherever_it_is_cut(written: tuple[str, Path]) -> None:
    form, folder = written
    stored = with_quantised(read_folder(folder), folder)
    found = [t for t in stored.values() if isinstance(t, QuantisedTensor)]
    tensor = next(t for t in found if "experts" in t.name)
    with Reader() as reader:
        whole = torch.zeros(tensor.shape)
        read_stored(reader, tensor, Overlap((0,) * whole.ndim, (0,) * whole.ndim, tensor.shape), whole)
        start, shape = ((3, 11), (17, 20)) if form == "fp8" else ((2, 33, 5), (3, 40, 7))  # inside of blocks
        part = torch.zeros(shape)
        read_stored(reader, tensor, Overlap(start, (0,) * len(shape), shape), part)
    assert torch.equal(part, whole[tuple(slice(s, s + n) for s, n in zip(start, shape, strict=True))])


@pytest.mark.wide
@pytest.mark.parametrize(
    ("degrees", "pattern"),
    [(Degrees(tp=4, etp=4), "megatron"), (Degrees(dp=2, tp=2, ep=2, etp=2, batch=2), "gather_in")],
)
def test_every_rank_loads_the_dequantised_part(written: tuple[str, Path], degrees: Degrees, pattern: str) -> None:
    form, folder = written
    source = SOURCES[form]
    graph = trace_source(source)
    strategy = pattern_strategy(graph, degrees, pattern)
    for rank in range(4):
        with rank_of_four(rank, graph, degrees) as mesh:
            whole = source.build(device="cpu", dtype="float32", seed=2)
            load_reference(whole, folder)
            want = emit.apply(whole, graph, strategy, mesh)
            got = emit.apply(source.build(dtype="float32"), graph, strategy, mesh)
            load_weights(got, graph, strategy, mesh, folder)
            assert_same_shards(got, want)


def test_scales_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    codes = torch.zeros(16, 16, dtype=torch.float8_e4m3fn)
    save_file({"a.weight": codes, "a.weight_scale_inv": torch.ones(3, 1)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": FP8}))
    with pytest.raises(
        InvalidInputError, match=r"a.weight_scale_inv is \(3, 1\); blocks of \(8, 16\) .* need \(2, 1\)"
    ):
        with_quantised(read_folder(tmp_path), tmp_path)


@pytest.mark.wide
@pytest.mark.parametrize("form", ["fp8", "mxfp4"])
def test_a_quantised_model_is_validated_from_its_blocks(form: str, tmp_path: Path) -> None:
    source = SOURCES[form]
    config = {**source.config, "architectures": [source.class_name]}
    config["model_type"] = "qwen3_moe" if form == "fp8" else "gpt_oss"
    (tmp_path / "config.json").write_text(json.dumps(config))
    said: list[str] = []
    data = validate(str(tmp_path), simulate_ranks=4, dtype="float64", progress=said.append)
    assert any(f"in {form}" in line for line in said)
    failed = [(c["name"], c["difference"]) for c in data["cases"] if not c["passed"]]
    assert data["passed"] and not failed, failed
