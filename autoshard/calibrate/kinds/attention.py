"""Decode and prefill attention with grouped queries; heads are those of one device."""

import numpy as np

from autoshard.calibrate.formats import element_bytes
from autoshard.calibrate.kinds.kind import TableKind, framework_labels, kernel_law
from autoshard.calibrate.optimise import FloatArray, Parameter
from autoshard.calibrate.tables import Table, one_in
from autoshard.cost import decode_law_s, prefill_law_s
from autoshard.hardware import Cluster, KernelLaw

_DECODE = (
    Parameter("launch_s", 8e-6, 5e-7, 6e-5),
    Parameter("memory_efficiency", 0.85, 0.2, 1.0),
    Parameter("saturation_bytes", 2e6, 1e3, 3e7),
    Parameter("split_s", 2e-6, 1e-8, 3e-5),
    Parameter("split_tokens", 200.0, 4.0, 4e4),
    Parameter("unit_s", 1e-6, 1e-8, 1e-5),
    Parameter("query_efficiency", 0.3, 5e-3, 1.0),
)
_PREFILL = (
    Parameter("launch_s", 1e-5, 5e-7, 1e-4),
    Parameter("compute_efficiency", 0.7, 0.1, 1.0),
    Parameter("softmax_width", 20.0, 0.01, 200.0),
    Parameter("query_efficiency", 0.4, 0.02, 1.0),
    Parameter("kv_efficiency", 0.4, 0.01, 1.0),
    Parameter("tile", 128.0, 1.0, 256.0),
    Parameter("unit_s", 3e-7, 1e-9, 1e-5),
)


def _dtype(word: str) -> str:
    return "bfloat16" if element_bytes(word) >= 2 else "float8_e4m3fn"


def _heads(rows: Table) -> tuple[FloatArray, FloatArray]:
    """Query heads and kv heads; a table may write 0 kv heads for as many as queries."""
    heads, kv_heads = rows.positive("num_heads"), rows.numbers("num_key_value_heads")
    return heads, np.where(kv_heads > 0, kv_heads, heads)


def _window(rows: Table) -> FloatArray:
    """Tokens a query may look back, infinite without a sliding window."""
    window = rows.numbers("window_size", 0.0)
    return np.where(window > 0, window, np.inf)


def _predict_decode(cluster: Cluster, rows: Table, label: str, law: KernelLaw | None) -> FloatArray:
    framework, word = label.split("/")
    if law is None:
        law = kernel_law(cluster.device, "attention_decode", framework, word, _dtype(word))
    heads, kv_heads = _heads(rows)
    width = rows.positive("head_dim")
    context = np.minimum(rows.numbers("ctx_len"), _window(rows))
    return decode_law_s(
        cluster.device,
        law,
        rows.positive("batch_size"),
        context,
        heads,
        kv_heads,
        width,
        width,
        element_bytes(word),
    )


def _predict_prefill(cluster: Cluster, rows: Table, label: str, law: KernelLaw | None) -> FloatArray:
    framework, attention, cache = label.split("/")
    if law is None:
        rest = f"{attention}/{cache}"
        law = kernel_law(cluster.device, "attention_prefill", framework, rest, _dtype(cache))
    heads, kv_heads = _heads(rows)
    width, tokens = rows.positive("head_dim"), rows.positive("isl")
    window = np.minimum(_window(rows), tokens)
    # Under the causal mask a token sees half the prompt; with a window, the window but for the first tokens.
    mean = window - window * window / (2.0 * tokens)
    return prefill_law_s(
        cluster.device,
        law,
        rows.positive("batch_size"),
        tokens,
        mean,
        heads,
        kv_heads,
        width,
        width,
        element_bytes(cache),
    )


_SHAPE = ["num_heads", "num_key_value_heads", "head_dim"]

DECODE = TableKind(
    name="attention_decode",
    file="attention_decode",
    columns=("kv_cache_dtype", "batch_size", "ctx_len", *_SHAPE, "time_us"),
    labels=lambda table: framework_labels(table, "kv_cache_dtype"),
    predict=_predict_decode,
    parameters=lambda _: _DECODE,
    base=lambda _: KernelLaw(compute_efficiency=0.6, memory_efficiency=0.8, launch_s=1e-5, overlap=2.0),
    slot=lambda label: ("kernels", "attention_decode", label),
    held_out=lambda table: one_in(table, _SHAPE, 4),
    split="a quarter of the (heads, kv heads, head_dim)",
)

PREFILL = TableKind(
    name="attention_prefill",
    file="attention_prefill",
    columns=("attn_dtype", "kv_cache_dtype", "batch_size", "isl", *_SHAPE, "time_us"),
    labels=lambda table: framework_labels(table, "attn_dtype", "kv_cache_dtype"),
    predict=_predict_prefill,
    parameters=lambda _: _PREFILL,
    base=lambda _: KernelLaw(compute_efficiency=0.7, memory_efficiency=0.8, launch_s=1e-5),
    slot=lambda label: ("kernels", "attention_prefill", label),
    held_out=lambda table: one_in(table, _SHAPE, 4),
    split="a quarter of the (heads, kv heads, head_dim)",
)
