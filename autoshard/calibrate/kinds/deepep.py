"""DeepEP-style dispatch and combine over one or more nodes.

The time of a row is ``time_us`` plus, where there is one, ``notify_us``. A dispatch sends float8 rows with a float32
scale for every 128 elements unless the source names another format; a combine sends 16 bits.
"""

import numpy as np

from autoshard.calibrate.kinds.kind import TableKind
from autoshard.calibrate.optimise import FloatArray, Parameter
from autoshard.calibrate.tables import BoolArray, Table, one_in
from autoshard.cost import dispatch_s
from autoshard.errors import InvalidInputError
from autoshard.hardware import Cluster, DispatchLaw
from autoshard.units import US

_PARAMETERS = (
    Parameter("latency_s", 2e-5, 1e-6, 4e-4),
    Parameter("node_latency_s", 1e-5, 1e-7, 2e-4),
    Parameter("local_efficiency", 0.5, 0.02, 1.0),
    Parameter("remote_efficiency", 0.9, 0.02, 1.0),
    Parameter("half_rate_units", 5.0, 1e-3, 200.0),
)
_FORMATS = {"bfloat16": 2.0, "nvfp4": 0.5625}
_FP8_ROW = 1.0 + 4.0 / 128.0
_MANY_NODES = 4.0


def _sources(table: Table) -> list[str]:
    """The format that a source names, empty for the usual one."""
    return [next((f"_{word}" for word in _FORMATS if source.endswith(word)), "") for source in table.text("source")]


def _labels(table: Table) -> list[str]:
    for phase in set(table.text("phase")):
        if phase not in {"dispatch", "combine"}:
            raise InvalidInputError(f"{table.name}: unknown phase {phase!r}: known are dispatch and combine")
    rows = zip(table.text("mode"), _sources(table), table.text("phase"), strict=True)
    return [f"{mode}{suffix}/{phase}" for mode, suffix, phase in rows]


def deduplicated(mode: str) -> bool:
    """Throughput kernels send a token to a node once; low-latency ones send a row for every expert."""
    return not any(word in mode for word in ("low_latency", "_ll", "generation"))


def _law(cluster: Cluster, label: str) -> DispatchLaw:
    mode, phase = label.split("/")
    known = cluster.device.dispatch
    kind = "normal" if deduplicated(mode) else "low_latency"
    for word in (mode, mode.rsplit("_", 1)[0], kind):
        if f"{word}/{phase}" in known:
            return known[f"{word}/{phase}"]
    raise InvalidInputError(f"device {cluster.device.name} has no dispatch constants for {label!r}")


def _predict(cluster: Cluster, rows: Table, label: str, law: DispatchLaw | None) -> FloatArray:
    mode, phase = label.split("/")
    each = _FORMATS.get(mode.rsplit("_", 1)[-1], _FP8_ROW) if phase == "dispatch" else 2.0
    return dispatch_s(
        law or _law(cluster, label),
        rows.positive("tokens_per_rank"),
        rows.positive("hidden") * each,
        rows.positive("topk"),
        rows.positive("ep_size"),
        rows.positive("nodes"),
        cluster.intra,
        cluster.inter,
        rows.numbers("sms", 0.0),
    )


def _held_out(table: Table) -> BoolArray:
    """Four nodes where a mode has them; elsewhere a quarter of the shapes."""
    many = table.positive("nodes") >= _MANY_NODES
    labels = np.array(_labels(table))
    spread = np.isin(labels, np.unique(labels[many]))
    single = one_in(table, ["source", "hidden", "topk", "experts"], 4)
    return np.where(spread, many, single)


def _weights(table: Table) -> FloatArray:
    """Every number of nodes counts as much as another."""
    nodes = table.positive("nodes")
    values, index, counts = np.unique(nodes, return_inverse=True, return_counts=True)
    found: FloatArray = (len(nodes) / (len(values) * counts))[index]
    return found


DEEPEP = TableKind(
    name="deepep",
    file="deepep",
    columns=("mode", "phase", "nodes", "ep_size", "hidden", "topk", "tokens_per_rank", "time_us"),
    labels=_labels,
    predict=_predict,
    parameters=lambda _: _PARAMETERS,
    base=lambda label: DispatchLaw(latency_s=2e-5, deduplicated=deduplicated(label.split("/")[0])),
    slot=lambda label: ("dispatch", label),
    held_out=_held_out,
    split="4 nodes where measured, else a quarter of the (hidden, topk, experts)",
    measured=lambda table: (table.positive("time_us") + table.numbers("notify_us", 0.0)) * US,
    weights=_weights,
)
