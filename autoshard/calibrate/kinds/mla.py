"""Multi-head latent attention of DeepSeek's shape; the context of a row is ``isl + step``, heads are per device."""

from collections.abc import Sequence

from autoshard.calibrate.formats import element_bytes
from autoshard.calibrate.kinds.kind import TableKind, framework_labels, kernel_law
from autoshard.calibrate.optimise import FloatArray, Parameter
from autoshard.calibrate.tables import Table, one_in
from autoshard.cost import mla_decode_law_s, prefill_law_s
from autoshard.errors import InvalidInputError
from autoshard.hardware import Cluster, KernelLaw

_DECODE = (
    Parameter("launch_s", 1e-5, 5e-7, 6e-5),
    Parameter("compute_efficiency", 0.6, 0.1, 1.0),
    Parameter("memory_efficiency", 0.8, 0.2, 1.0),
    Parameter("saturation_bytes", 1e6, 1e3, 3e7),
    Parameter("split_s", 3e-6, 1e-8, 3e-5),
    Parameter("split_tokens", 300.0, 4.0, 4e4),
    Parameter("tile", 16.0, 1.0, 128.0),
    Parameter("unit_s", 5e-7, 1e-9, 2e-5),
)
_PREFILL = (
    Parameter("launch_s", 1.4e-5, 5e-7, 1e-4),
    Parameter("compute_efficiency", 0.6, 0.1, 1.0),
    Parameter("softmax_width", 5.0, 0.01, 200.0),
    Parameter("memory_efficiency", 0.5, 0.02, 1.0),
    Parameter("tile", 128.0, 1.0, 256.0),
    Parameter("unit_s", 3e-7, 1e-9, 2e-5),
)
_PREFILL_PHASES = {"context", "prefill"}
_DECODE_PHASES = {"generation", "decode"}


def _decodes(label: str) -> bool:
    phase = label.split("/")[1]
    if phase in _DECODE_PHASES:
        return True
    if phase in _PREFILL_PHASES:
        return False
    raise InvalidInputError(f"unknown phase {phase!r} of an MLA row: known are context and generation")


def _parameters(label: str) -> Sequence[Parameter]:
    return _DECODE if _decodes(label) else _PREFILL


def _slot(label: str) -> tuple[str, ...]:
    framework, _, cache = label.split("/")
    return ("kernels", "mla_decode" if _decodes(label) else "mla_prefill", f"{framework}/{cache}")


def _predict(cluster: Cluster, rows: Table, label: str, law: KernelLaw | None) -> FloatArray:
    framework, _, cache = label.split("/")
    device, bytes_each = cluster.device, element_bytes(cache)
    dtype = "bfloat16" if bytes_each >= 2 else "float8_e4m3fn"
    sequences, heads = rows.positive("batch_size"), rows.positive("num_heads")
    prompt, step = rows.positive("isl"), rows.numbers("step", 0.0)
    if _decodes(label):
        law = law or kernel_law(device, "mla_decode", framework, cache, dtype)
        return mla_decode_law_s(device, law, sequences, prompt + step, heads, 512.0, 64.0, bytes_each)
    law = law or kernel_law(device, "mla_prefill", framework, cache, dtype)
    return prefill_law_s(device, law, sequences, prompt, step + prompt / 2.0, heads, heads, 192.0, 128.0, bytes_each)


MLA = TableKind(
    name="mla",
    file="mla_deepseek",
    columns=("phase", "kv_cache_dtype", "num_heads", "batch_size", "isl", "time_us"),
    labels=lambda table: framework_labels(table, "phase", "kv_cache_dtype"),
    predict=_predict,
    parameters=_parameters,
    base=lambda _: KernelLaw(compute_efficiency=0.6, memory_efficiency=0.8, launch_s=1e-5, overlap=2.0),
    slot=_slot,
    held_out=lambda table: one_in(table, ["num_heads", "batch_size"], 4),
    split="a quarter of the (heads, batch)",
)
