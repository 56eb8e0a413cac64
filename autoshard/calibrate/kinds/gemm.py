"""Dense products: ``m`` tokens, ``k`` inputs, ``n`` outputs."""

from collections.abc import Sequence

from autoshard.calibrate.formats import format_of
from autoshard.calibrate.kinds.kind import TableKind, framework_labels, kernel_law
from autoshard.calibrate.optimise import FloatArray, Parameter
from autoshard.calibrate.tables import Table, one_in
from autoshard.cost import gemm_law_s
from autoshard.hardware import Cluster, KernelLaw

_COMMON = (
    Parameter("launch_s", 4e-6, 5e-7, 1e-4),
    Parameter("memory_efficiency", 0.85, 0.2, 1.0),
    Parameter("compute_efficiency", 0.8, 0.1, 1.0),
    Parameter("overlap", 2.0, 1.0, 8.0),
    Parameter("k_latency_s", 1e-10, 1e-13, 5e-9),
    Parameter("tile_edge", 5.0, 0.05, 60.0),
    Parameter("throttle", 0.1, 1e-3, 1.0),
)
_QUANTISE = Parameter("quantise_efficiency", 0.5, 0.02, 1.0)


def _parameters(label: str) -> Sequence[Parameter]:
    return (*_COMMON, _QUANTISE) if "fp8" in label else _COMMON


def _predict(cluster: Cluster, rows: Table, label: str, law: KernelLaw | None) -> FloatArray:
    framework, word = label.split("/")
    number = format_of(word, cluster.device)
    if law is None:
        law = kernel_law(cluster.device, "gemm", framework, word, number.dtype)
    m, k, n = (rows.positive(column) for column in ("m", "k", "n"))
    return gemm_law_s(cluster.device, law, m, k, n, number.dtype, number.weight_bytes)


GEMM = TableKind(
    name="gemm",
    file="gemm",
    columns=("gemm_dtype", "m", "n", "k", "time_us"),
    labels=lambda table: framework_labels(table, "gemm_dtype"),
    predict=_predict,
    parameters=_parameters,
    base=lambda _: KernelLaw(compute_efficiency=0.8, memory_efficiency=0.8, launch_s=4e-6, tile_edge=5.0),
    slot=lambda label: ("kernels", "gemm", label),
    held_out=lambda table: one_in(table, ["n", "k"], 5),
    split="a fifth of the (n, k)",
)
