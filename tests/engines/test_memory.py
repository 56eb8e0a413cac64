"""The memory of a rank against what engines logged, against hand arithmetic, and against the simulator's own tables."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from autoshard.engines import Launch, MemoryModel, RankMemory, engine_version, find_scheme, read_engine
from autoshard.hardware import parse_cluster
from autoshard.simulator import Simulator
from autoshard.units import GIB
from autoshard.workload import Workload
from tests.traced import traced


def rank(
    model: str,
    cluster: str,
    quant: str,
    *,
    engine: str = "vllm",
    version: str | None = None,
    context: int = 4096,
    kv_dtype: str = "bfloat16",
    options: dict[str, Any] | None = None,
    **degrees: int,
) -> RankMemory:
    profile = read_engine(engine)
    launch = Launch(
        graph=traced(model),
        cluster=parse_cluster(cluster),
        engine=profile,
        version=engine_version(profile, version),
        scheme=find_scheme(quant),
        options=profile.with_options(options or {}),
    )
    d = {"pp": 1, "dp": 1, "tp": 1, "ep": 1, **degrees}
    d.setdefault("etp", d["dp"] * d["tp"] // d["ep"])
    return MemoryModel(launch, context=context, kv_dtype=kv_dtype).at(**d)


@dataclass(frozen=True)
class Log:
    """A figure an engine printed: weights, KV budget (both GiB), or tokens of cache."""

    source: str
    model: str
    cluster: str
    quant: str
    what: str
    value: float
    given: dict[str, Any] = field(default_factory=dict)


MARLIN = {"version": "0.10.1", "context": 131072}
LOGS = (
    # named by the project's issue 6
    Log("vLLM, one H100", "gpt-oss-20b", "H100x1", "mxfp4", "weights", 13.47),
    Log("vllm#33155, v0.14.1, Triton", "gpt-oss-120b", "H100x1", "mxfp4", "weights", 64.38),
    Log("vLLM, two GPUs", "qwen3-32b", "H100x2", "bf16", "weights", 30.59, {"tp": 2}),
    # found in public threads
    Log("myoceane.fr, A100, Marlin", "gpt-oss-20b", "A100x1", "mxfp4", "weights", 13.72),
    Log("vllm#23278, v0.10.1, Marlin", "gpt-oss-120b", "H100x1", "mxfp4", "weights", 65.9651, MARLIN),
    Log("vllm#23278", "gpt-oss-120b", "H100x1", "mxfp4", "budget", -2.14, MARLIN),
    Log(
        "vllm#27508, utilisation 0.95 and 1024 tokens a step",
        "gpt-oss-120b",
        "H100x1",
        "mxfp4",
        "budget",
        1.71,
        {**MARLIN, "options": {"fraction": 0.95, "max_num_tokens": 1024}},
    ),
    Log("vllm#17327, v0.8.5", "qwen3-30b-a3b", "L40Sx4", "bf16", "weights", 14.2474, {"tp": 4}),
    Log("vllm#10511", "llama-3-8b", "H100x1", "bf16", "weights", 14.96),
    Log("vllm#10511", "llama-3-8b", "H100x1", "bf16", "budget", 53.29, {"options": {"max_num_seqs": 256}}),
    Log("vllm#10511", "llama-3-8b", "H100x2", "bf16", "weights", 7.48, {"tp": 2}),
    Log("vllm#21348", "qwen3-235b-a22b", "H100x4", "fp8_block", "budget", 8.11, {"tp": 4}),
    Log("vllm#21348", "qwen3-235b-a22b", "H100x4", "fp8_block", "tokens", 178_880, {"tp": 4}),
    Log(
        "vllm#21348, SGLang at a static share of 0.93: K 8.23 and V 8.23",
        "qwen3-235b-a22b",
        "H100x4",
        "fp8_block",
        "budget",
        16.46,
        {"engine": "sglang", "tp": 4, "options": {"fraction": 0.93}},
    ),
    Log(
        "vllm#21348, SGLang",
        "qwen3-235b-a22b",
        "H100x4",
        "fp8_block",
        "tokens",
        367_404,
        {"engine": "sglang", "tp": 4, "options": {"fraction": 0.93}},
    ),
    Log("vllm#24072", "qwen3-coder-480b", "H20x8", "fp8_block", "weights", 56.3, {"tp": 8, "ep": 8}),
)


@pytest.mark.parametrize("log", LOGS, ids=[f"{x.model}-{x.what}-{x.source.split(',')[0]}" for x in LOGS])
def test_what_engines_logged_within_five_percent(log: Log) -> None:
    m = rank(log.model, log.cluster, log.quant, **{"context": 4096, **log.given})
    found = {
        "weights": m.weights.total / GIB,
        "budget": m.budget / GIB,
        "tokens": m.max_concurrency * int(log.given.get("context", 4096)),
    }[log.what]
    # A budget is a small difference of large numbers: 5 % of it, or 0.1 GiB of 79.
    assert found == pytest.approx(log.value, rel=0.05, abs=0.1 if log.what == "budget" else 0.0)


def test_weights_of_gpt_oss_by_hand() -> None:
    m = rank("gpt-oss-20b", "H100x1", "mxfp4")
    # 24 layers of 32 experts; hidden 2880 padded to 3072; 4 bits an element, a byte of scale for every 32
    matrices = 24 * 32 * 3 * 3072 * 2880
    assert m.weights.scales == matrices / 32
    biases = 24 * 32 * (2 * 2880 + 3072) * 2
    assert m.weights.experts == matrices / 2 + biases
    assert m.weights.embedding == 2 * 201088 * 2880 * 2
    attention = 2880 * (4096 + 2 * 512) + (4096 + 2 * 512) + 4096 * 2880 + 2880 + 64
    rest = 24 * (attention + 32 * 2880 + 32 + 2 * 2880) + 2880
    assert m.weights.other == rest * 2


def test_block_scales_and_shards_of_latent_attention_by_hand() -> None:
    m = rank("deepseek-v3", "H200x8", "fp8_block", tp=8, ep=8)
    routed = 58 * 32 * 3 * 7168 * 2048  # 256 / 8 experts of 3 matrices a rank, one byte each
    assert m.weights.experts == routed
    # every matrix of a multiple of 128: a float32 for 128 x 128 elements; kv_a has 576 rows, 5 blocks
    whole = 1536 * 7168 + 576 * 7168  # q_a and kv_a make latents: whole on every rank
    split = (24576 * 1536 + 32768 * 512 + 7168 * 16384) // 8
    dense, shared = 3 * 18432 // 8 * 7168, 3 * 2048 // 8 * 7168
    matrices = 61 * (whole + split) + 3 * dense + 58 * shared
    blocks = 61 * (12 * 56 + 5 * 56 + 24 * 12 + 32 * 4 + 56 * 16) + 3 * (3 * 18 * 56) + 58 * (3 * 2 * 56)
    blocks += 58 * 32 * (2 * 16 * 56 + 56 * 16)
    assert m.weights.scales == blocks * 4
    routers, norms = 58 * 256 * 7168, 61 * (2 * 7168 + 1536 + 512) + 7168
    assert m.weights.other == matrices + 2 * (routers + norms)
    assert m.weights.embedding == 2 * 129280 // 8 * 7168 * 2


def test_a_window_holds_its_tokens_and_a_steps() -> None:
    # gpt-oss: 18 layers of all tokens and 18 of a window of 128; 2 * 8 heads * 64 * 2 bytes a token and layer.
    each = 2 * 8 * 64 * 2
    m = rank("gpt-oss-120b", "H100x1", "mxfp4", context=131072)
    # vLLM: window - 1 + 8192 tokens of a step, in blocks of 16, and one more: 8319 -> 520 + 1 blocks
    assert m.request == 18 * each * (131072 + 521 * 16)
    plain = rank("gpt-oss-120b", "H100x1", "mxfp4", engine="torch", context=131072)
    assert plain.request == 18 * each * (131072 + 128)
    short = rank("gpt-oss-120b", "H100x1", "mxfp4", engine="torch", context=100)
    assert short.request == 36 * each * 100


def test_fp8_cache_is_half() -> None:
    full = rank("qwen3-30b-a3b", "H100x1", "bf16")
    half = rank("qwen3-30b-a3b", "H100x1", "bf16", kv_dtype="float8_e4m3fn")
    assert half.request == full.request / 2
    assert half.max_concurrency == pytest.approx(2 * full.max_concurrency)


def test_the_stage_with_least_room_counts() -> None:
    # 48 layers over 5 stages: 9, 10, 10, 10, 9; a middle one holds most layers' cache.
    m = rank("qwen3-30b-a3b", "H100x5", "bf16", pp=5)
    assert m.stage in (1, 2, 3)
    assert m.request == 10 * 2 * 4 * 128 * 2 * 4096
    assert m.weights.embedding == 0


@pytest.mark.parametrize(
    ("engine", "formula"),
    [
        ("vllm", lambda m, f: f * m.capacity - m.weights.total - m.activations - m.context - m.communication),
        ("sglang", lambda m, f: f * (m.capacity - m.context - m.communication) - m.weights.total),
        ("trtllm", lambda m, f: f * (m.capacity - m.weights.total - m.activations - m.context - m.communication)),
    ],
)
def test_the_budget_is_the_engines_rule(engine: str, formula: Any) -> None:
    for fraction in (0.5, 0.9):
        m = rank("qwen3-30b-a3b", "H100x2", "bf16", engine=engine, tp=2, options={"fraction": fraction})
        assert m.budget == pytest.approx(formula(m, fraction))
        assert m.communication > 0
    assert rank("qwen3-30b-a3b", "H100x2", "bf16", engine=engine).communication == 0


@pytest.mark.parametrize(
    ("model", "degrees"),
    [
        ("qwen3-30b-a3b", {"tp": 8, "ep": 4, "etp": 2}),
        ("qwen3-30b-a3b", {"tp": 2, "dp": 2, "pp": 2, "ep": 2, "etp": 2}),
        ("deepseek-v3", {"tp": 8, "pp": 2, "ep": 8, "etp": 1}),
        ("qwen3-next-80b-a3b", {"tp": 4, "ep": 4, "etp": 1}),
        ("deepseek-v4-flash", {"tp": 4, "ep": 4, "etp": 1}),
        ("llama-3.2-1b", {"tp": 2, "pp": 2, "ep": 1, "etp": 2}),
    ],
)
def test_without_an_engine_it_is_what_plans_count(model: str, degrees: dict[str, int]) -> None:
    cluster = parse_cluster("H200x16")
    d = {"pp": 1, "dp": 1, **degrees}
    # One sequence of every dp rank in flight: one microbatch, as check's one request.
    simulator = Simulator(traced(model), cluster, Workload(), fixed={**d, "batch": d["dp"], "replicas": 1})
    least = float(simulator.minimum_bytes()[0] - simulator.fixed_bytes(np.zeros(1, dtype=np.int64))[0])
    m = rank(model, "H200x16", "bf16", engine="torch", **d)
    assert m.weights.total + m.request == pytest.approx(least, rel=1e-12)


def test_sglang_chooses_its_share_by_device_and_degrees() -> None:
    # server_args.py of 0.5.4 on 80 GiB-class devices: chunks of 8192 and, from 4 ranks on, 512 captured sequences:
    # 512 + 1.5 * 8192 + 2 * 512 + 128 * 8 = 14848 MiB of the device's are not static
    m = rank("qwen3-30b-a3b", "H100x8", "bf16", engine="sglang", tp=8)
    fraction = 1 - 14848 * 2**20 / m.capacity
    assert m.budget == pytest.approx(fraction * (m.capacity - m.context - m.communication) - m.weights.total)
    # DP attention holds 4.5 MiB more for each of 512 sequences and every dp rank, down to a share of 0.7
    for dp, fraction in ((2, 1 - (14848 + 4.5 * 512 * 2) * 2**20 / m.capacity), (8, 0.7)):
        m = rank("qwen3-30b-a3b", "H100x8", "bf16", engine="sglang", dp=dp, tp=8 // dp, ep=8)
        assert m.budget == pytest.approx(fraction * (m.capacity - m.context - m.communication) - m.weights.total)
    # before, a constant
    m = rank("qwen3-30b-a3b", "H100x8", "bf16", engine="sglang", version="0.4.6", tp=8)
    assert m.budget == pytest.approx(0.88 * (m.capacity - m.context - m.communication) - m.weights.total)


def test_vllm_counts_graphs_in_its_budget_from_0_21() -> None:
    before, after = (rank("qwen3-30b-a3b", "H100x1", "fp8", version=v) for v in ("0.20", "0.21"))
    # 0.92 instead of 0.9 of the device, less the graphs
    assert after.budget - before.budget == pytest.approx(0.02 * before.capacity - before.graphs)
    # an A100 of 80 GB has the step of a small GPU: a quarter of the tokens and sequences
    small = rank("qwen3-30b-a3b", "A100x1", "fp8")
    assert small.activations == pytest.approx(before.activations / 4, rel=0.02)
