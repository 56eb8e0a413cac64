from typing import Any

import pytest

from autoshard.errors import InvalidInputError
from autoshard.workload import Workload


def test_default_is_decode_at_4096() -> None:
    workload = Workload()
    assert (workload.phase, workload.tokens_per_sequence, workload.mean_context) == ("decode", 1, 4096.0)
    assert workload.cached_tokens_per_sequence == 4096
    assert workload.tpot_s is None and workload.ttft_s is None


def test_prefill_is_causal() -> None:
    workload = Workload(phase="prefill", context=1000, ttft_ms=250)
    assert (workload.tokens_per_sequence, workload.mean_context, workload.ttft_s) == (1000, 500.0, 0.25)
    assert Workload(phase="prefill", context=1000, isl=64).tokens_per_sequence == 64


def test_serving_lengths() -> None:
    workload = Workload(phase="serve", isl=1000, osl=200, ttft_ms=500, tpot_ms=20)
    # a decode step sees the prompt and, on average, half of the answer; memory holds all of both
    assert (workload.tokens_per_sequence, workload.mean_context, workload.cached_tokens_per_sequence) == (1, 1100, 1200)
    assert (workload.ttft_s, workload.tpot_s) == (0.5, 0.02)


def test_limits_are_seconds_inside() -> None:
    assert Workload(tpot_ms=50).tpot_s == 0.05


def test_aliases_are_stored_under_torch_names() -> None:
    workload = Workload(dtype="fp8", kv_dtype="bf16")
    assert (workload.dtype, workload.kv_dtype) == ("float8_e4m3fn", "bfloat16")
    assert workload == Workload(dtype="float8_e4m3fn")


@pytest.mark.parametrize(
    ("wrong", "parts"),
    [
        ({"phase": "serve"}, ["'serve'", "--isl and --osl"]),
        ({"phase": "serve", "isl": 100}, ["'serve'", "needs --osl:"]),
        ({"phase": "serve", "isl": 100, "osl": 0}, ["osl", "at least 1", "0"]),
        ({"phase": "train"}, ["'train'", "decode, prefill, serve"]),
        ({"context": 0}, ["context", "at least 1", "0"]),
        ({"context": 1.5}, ["context", "whole number", "1.5"]),
        ({"tpot_ms": 0}, ["tpot_ms", "positive"]),
        ({"tpot_ms": float("nan")}, ["tpot_ms", "positive"]),
        ({"phase": "prefill", "ttft_ms": -3}, ["ttft_ms", "positive"]),
        ({"phase": "prefill", "tpot_ms": 20}, ["tpot_ms=20 limits decode", "serve"]),
        ({"ttft_ms": 20}, ["ttft_ms=20 limits prefill", "serve"]),
        ({"isl": 128}, ["isl=128", "prefill"]),
        ({"osl": 128}, ["osl=128", "serve"]),
        ({"concurrency": 8}, ["concurrency=8", "decode", "'serve'"]),
        ({"engine": "vllm"}, ["engine=vllm", "'serve'"]),
        ({"phase": "serve", "isl": 1, "osl": 1, "concurrency": 0}, ["concurrency", "requests", "at least 1"]),
        ({"dtype": "fp9"}, ["'fp9'", "bf16", "float8_e4m3fn"]),
        ({"kv_dtype": "int64"}, ["'int64'", "bf16"]),
    ],
)
def test_wrong_values_give_one_line(wrong: dict[str, Any], parts: list[str]) -> None:
    with pytest.raises(InvalidInputError) as error:
        Workload(**wrong)
    line = str(error.value)
    assert "\n" not in line
    assert all(part in line for part in parts), line
