"""Fits the kernel and collective constants of the H100 device file to measured tables, and prints held-out errors.

``python benchmarks/fit_v1.py FOLDER`` with the folder that holds ``gemm_h100.csv.gz`` and its siblings (tables of
aiconfigurator-core 0.12.0, Apache-2.0, (c) NVIDIA). A fifth of the shapes (for experts: a quarter of the models) is
held out by hash, the rest fitted by pattern search on the mean absolute log ratio. The functions fitted are the ones
that the package uses. Nothing is written: constants go into the device file by hand.
"""

import csv
import gzip
import sys
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np

from autoshard.cost import (
    FloatArray,
    attention_decode_s,
    attention_prefill_s,
    collective_s,
    gemm_s,
    grouped_gemm_s,
    memory_op_s,
)
from autoshard.hardware import CollectiveKind, CollectiveLaw, Device, KernelLaw, Link, load_device
from autoshard.units import GB, MB, US

DTYPE = {"bfloat16": "bfloat16", "fp8_block": "float8_e4m3fn", "fp8": "float8_e4m3fn"}
Table = dict[str, np.ndarray]


def read(path: Path, keep: Callable[[dict[str, str]], bool]) -> Table:
    """The rows that ``keep`` accepts, as columns; numbers where every entry is one."""
    with gzip.open(path, "rt") as file:
        rows = [row for row in csv.DictReader(file) if keep(row)]
    table: Table = {}
    for name in rows[0]:
        values = [row[name] for row in rows]
        try:
            table[name] = np.array([float(v) for v in values])
        except ValueError:
            table[name] = np.array(values)
    return table


def held_out(table: Table, columns: Sequence[str], one_in: int) -> np.ndarray:
    """True for one group in ``one_in``, groups being equal values of ``columns``."""
    keys = zip(*(table[c] for c in columns), strict=True)
    return np.array([zlib.crc32(repr([str(v) for v in key]).encode()) % one_in == 0 for key in keys])


def search(law: Callable[[np.ndarray], FloatArray], start: Sequence[float], seconds: FloatArray) -> np.ndarray:
    """Pattern search in log space for the parameters with the least mean |log(predicted / measured)|."""

    def loss(x: np.ndarray) -> float:
        return float(np.mean(np.abs(np.log(law(np.exp(x)) / seconds))))

    x, steps = np.log(np.array(start)), np.full(len(start), 0.3)
    best = loss(x)
    while steps.max() > 1e-4:
        for i in range(len(x)):
            for sign in (1, -1):
                trial = x.copy()
                trial[i] += sign * steps[i]
                value = loss(trial)
                if value < best - 1e-9:
                    x, best, steps[i] = trial, value, steps[i] * 1.3
                    break
            else:
                steps[i] *= 0.6
    return cast(np.ndarray, np.exp(x))


def fit(
    title: str, law: Callable[[np.ndarray], FloatArray], start: Sequence[float], y: FloatArray, out: np.ndarray
) -> None:
    """Fits on the rows not in ``out`` and prints constants and median errors."""
    found = search(lambda p: law(p)[~out], start, y[~out])
    error = 100 * np.abs(law(found) / y - 1)
    numbers = " ".join(f"{v:.3f}" for v in found)
    held, rest = np.median(error[out]), np.median(error[~out])
    print(f"{title:44s} [{numbers}]  held out {held:.1f} % (n={out.sum()}), fitted {rest:.1f} % (n={(~out).sum()})")


def trial(kind: str, dtype: str, p: np.ndarray) -> Device:
    """The H100 with other constants (compute, memory, launch in microseconds) for one kind of kernel."""
    device = load_device("H100")
    law = KernelLaw(compute_efficiency=min(p[0], 1.0), memory_efficiency=min(p[1], 1.0), launch_s=float(p[2]) * US)
    kernels = {k: dict(v) for k, v in device.kernels.items()}
    kernels[kind][dtype] = law
    return replace(device, kernels=kernels)


def fit_gemm(folder: Path, framework: str, dtype: str) -> None:
    def keep(r: dict[str, str]) -> bool:
        sizes = 256 <= float(r["n"]) <= 60000 and 256 <= float(r["k"]) <= 32768 and float(r["m"]) <= 16384
        return r["framework"] == framework and r["gemm_dtype"] == dtype and sizes

    d, name = read(folder / "gemm_h100.csv.gz", keep), DTYPE[dtype]
    law = lambda p: gemm_s(trial("gemm", name, p), d["m"], d["k"], d["n"], name)  # noqa: E731
    fit(f"gemm {framework} {dtype}", law, [0.7, 0.8, 4], d["time_us"] * US, held_out(d, ["n", "k"], 5))


def fit_experts(folder: Path, framework: str, dtype: str) -> None:
    def keep(r: dict[str, str]) -> bool:
        same = r["framework"] == framework and r["moe_dtype"] == dtype and r["distribution"] == "balanced"
        return same and float(r["num_tokens"]) <= 16384

    d, name = read(folder / "moe_h100.csv.gz", keep), DTYPE[dtype]
    local = d["num_experts"] / d["moe_ep_size"]
    pairs = d["num_tokens"] * d["topk"] / d["moe_ep_size"]
    touched = np.minimum(local, np.maximum(pairs, 1))  # the table's balanced routing spreads tokens on purpose
    width, hidden = d["inter_size"] / d["moe_tp_size"], d["hidden_size"]

    def law(p: np.ndarray) -> FloatArray:
        device = trial("grouped_gemm", name, p)
        up = grouped_gemm_s(device, pairs, local, touched, hidden, 2 * width, name)
        down = grouped_gemm_s(device, pairs, local, touched, width, hidden, name)
        return up + memory_op_s(device, 3 * 2 * pairs * width) + down

    y, out = d["time_us"] * US, held_out(d, ["model"], 4)
    fit(f"experts {framework} {dtype}", law, [0.4, 0.8, 15], y, out)


def fit_decode(folder: Path, framework: str, dtype: str) -> None:
    d = read(
        folder / "attention_decode_h100.csv.gz",
        lambda r: r["framework"] == framework and r["kv_cache_dtype"] == dtype and r["head_dim"] == "128",
    )
    name, kv_bytes = DTYPE[dtype], 2.0 if dtype == "bfloat16" else 1.0

    def law(p: np.ndarray) -> FloatArray:
        device = trial("attention_decode", name, np.array([0.3, *p]))
        heads, kv_heads = d["num_heads"], d["num_key_value_heads"]
        return attention_decode_s(device, d["batch_size"], d["ctx_len"], heads, kv_heads, 128, 128, kv_bytes)

    y, out = d["time_us"] * US, held_out(d, ["num_heads", "num_key_value_heads"], 5)
    fit(f"attention_decode {framework} {dtype}", law, [0.7, 8], y, out)


def fit_prefill(folder: Path, framework: str) -> None:
    d = read(
        folder / "attention_prefill_h100.csv.gz",
        lambda r: (
            r["framework"] == framework
            and r["attn_dtype"] == r["kv_cache_dtype"] == "bfloat16"
            and r["head_dim"] == "128"
        ),
    )

    def law(p: np.ndarray) -> FloatArray:
        device, n = trial("attention_prefill", "bfloat16", p), d["isl"]
        heads, kv_heads = d["num_heads"], d["num_key_value_heads"]
        return attention_prefill_s(device, d["batch_size"], n, n / 2, heads, kv_heads, 128, 128)

    y, out = d["time_us"] * US, held_out(d, ["num_heads", "num_key_value_heads"], 5)
    fit(f"attention_prefill {framework} bfloat16", law, [0.6, 0.4, 10], y, out)


def fit_collective(folder: Path, kind: CollectiveKind) -> None:
    op = kind.replace("all_to_all", "alltoall")
    d = read(
        folder / "nccl_h100.csv.gz",
        lambda r: r["op"] == op and r["dtype"] == "half" and float(r["size_bytes"]) <= 2**28,
    )

    def law(p: np.ndarray) -> FloatArray:
        constants = CollectiveLaw(latency_s=p[0] * US, latency_per_rank_s=p[1] * US, saturation_bytes=p[3] * MB)
        link = Link(bytes_per_s=p[2] * GB, laws={kind: constants})
        return collective_s(kind, d["size_bytes"], d["num_gpus"], d["num_gpus"], link, link)

    y, out = d["time_us"] * US, held_out(d, ["size_bytes"], 4)
    fit(f"nccl {kind} (us, us/rank, GB/s, MB)", law, [5, 0.5, 350, 4], y, out)


def main() -> None:
    if len(sys.argv) != 2:
        print("nothing fitted: give the folder with the measured tables")
        return
    folder = Path(sys.argv[1])
    for framework, dtype in (("trtllm", "bfloat16"), ("trtllm", "fp8_block")):
        fit_gemm(folder, framework, dtype)
    for framework, dtype in (("vllm", "bfloat16"), ("vllm", "fp8_block")):
        fit_experts(folder, framework, dtype)
    for framework, dtype in (("vllm", "bfloat16"), ("vllm", "fp8")):
        fit_decode(folder, framework, dtype)
    fit_prefill(folder, "vllm")
    kinds: tuple[CollectiveKind, ...] = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
    for kind in kinds:
        fit_collective(folder, kind)


if __name__ == "__main__":
    main()
