"""The serving law's weights by hand."""

from dataclasses import replace

import numpy as np
import pytest

from autoshard.cost import Kernels, ServingLaw, gemm_s, serving_engines, serving_law, takes_turns
from autoshard.cost.formats import format_of
from autoshard.errors import InvalidInputError
from autoshard.hardware import load_device

LAW = ServingLaw(
    name="hand",
    kernels="vllm",
    all_reduce="vllm_graph",
    step_s=5e-4,
    sequence_s=2e-5,
    interference=0.5,
    prompt_passes=3.0,
    queue_share=0.1,
    chunk_tokens=1024,
    routing_skew=0.5,
    source="[assumed: a test]",
)


def test_weights_by_hand() -> None:
    pp, requests = np.array([1.0, 4.0]), np.array([1.0, 21.0])
    decode, prompts = LAW.tpot_weights(pp, requests, osl=100.0)
    # a lone request is not held up; 20 others bring 20 prompts while 100 tokens are made: 0.5 * 20 / 100 of one a token
    assert decode.tolist() == [1.0, 4.0] and prompts.tolist() == [0.0, 0.1]
    decode, prompts = LAW.ttft_weights(pp, requests)
    # 3 passes over each stage, and 0.1 of every other request's on one stage: 3 * 4 + 0.1 * 20 = 14
    assert decode.tolist() == prompts.tolist() == [3.0, 14.0]
    # 0.5 ms a step and 50 times 0.02
    assert LAW.host_s(np.array([50.0])).tolist() == [1.5e-3]


def test_every_engine_says_where_its_constants_come_from() -> None:
    assert set(serving_engines()) == {"vllm", "sglang", "trtllm"}
    for name in serving_engines():
        law = serving_law(name)
        assert law.source.startswith("[fitted: ") and law.sequence_s > 0 and law.chunk_tokens >= 1
    with pytest.raises(InvalidInputError, match="no serving law for engine 'tgi': known are vllm"):
        serving_law("tgi")


def test_the_host_of_a_version() -> None:
    """vLLM schedules one step ahead by default from 0.14 on; the others do in every version of the table."""
    now, then = serving_law("vllm"), serving_law("vllm==0.13.1")
    assert now == replace(then, name="vllm", step_s=0.0) and 1e-4 < then.step_s < 1e-2
    assert serving_law("vllm==0.14.0") == replace(now, name="vllm==0.14.0")
    assert serving_law("sglang==0.4.4").step_s == serving_law("trtllm==1.0.0rc3").step_s == 0.0
    # a run without a version is judged by its date, one without either is as it is now
    given = [("", "2025-11-02"), ("", "2026-03-27"), ("", ""), ("0.12.0", "2026-03-27")]
    assert [takes_turns("vllm", *each) for each in given] == [True, False, False, True]
    assert not takes_turns("trtllm", "", "2025-11-02")
    with pytest.raises(InvalidInputError, match="cannot read the version 'new': it is written as 0.11.2"):
        serving_law("vllm==new")
    with pytest.raises(InvalidInputError, match="cannot read the date 'May': it is written as 2025-11-02"):
        takes_turns("vllm", "", "May")


def test_an_engines_kernels_and_formats() -> None:
    device = load_device("H100")
    m, k, n = np.array([64.0]), np.array([4096.0]), np.array([8192.0])
    plain = Kernels(device=device, dtype="float8_e4m3fn", kv_dtype="bfloat16")
    assert plain.gemm_s(m, k, n) == gemm_s(device, m, k, n, "float8_e4m3fn")
    assert plain.gemm_s(m, k, n, "head") == gemm_s(device, m, k, n, "bfloat16")
    own = Kernels(device=device, dtype="bfloat16", kv_dtype="bfloat16", engine="sglang", dense="fp8")
    assert own.gemm_s(m, k, n) == gemm_s(device, m, k, n, "float8_e4m3fn", variant="sglang/fp8")
    # vLLM has no bf16 table of its own: TensorRT-LLM's library kernel stands in
    other = Kernels(device=device, dtype="bfloat16", kv_dtype="bfloat16", engine="vllm")
    assert other.gemm_s(m, k, n) == gemm_s(device, m, k, n, "bfloat16", variant="trtllm/bfloat16")
    assert format_of("w4a16_mxfp4", device).weight_bytes == 0.53
