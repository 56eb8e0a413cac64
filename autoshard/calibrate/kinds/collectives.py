"""NCCL collectives and the engines' own all-reduce, in one node; constants for every measured group size."""

import numpy as np

from autoshard.calibrate.kinds.kind import TableKind
from autoshard.calibrate.optimise import FloatArray, Parameter
from autoshard.calibrate.tables import BoolArray, Table
from autoshard.cost import collective_law_s
from autoshard.errors import InvalidInputError
from autoshard.hardware import Cluster, CollectiveKind, CollectiveLaw

_PARAMETERS = (
    Parameter("latency_s", 5e-6, 5e-7, 1e-4),
    Parameter("efficiency", 0.75, 0.02, 1.0),
    Parameter("saturation_bytes", 2e6, 1e3, 3e8),
    Parameter("step_s", 1e-6, 1e-9, 5e-5),
    Parameter("step_bytes", 1e5, 1e3, 1e7),
)
_KINDS: dict[str, CollectiveKind] = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "all_to_all": "all_to_all",
    "sendrecv": "send_recv",
    "send_recv": "send_recv",
}


def bus_bytes(kind: str, num_bytes: FloatArray, ranks: FloatArray) -> FloatArray:
    """Bytes of a rank that cross the link, by the convention of `autoshard.cost.collectives`."""
    if kind == "send_recv":
        return num_bytes
    return num_bytes * (ranks - 1.0) / ranks * (2.0 if kind == "all_reduce" else 1.0)


def _label(op: str, ranks: str) -> str:
    if op not in _KINDS:
        raise InvalidInputError(f"unknown collective {op!r} in the table: known are {', '.join(_KINDS)}")
    return f"{_KINDS[op]}/{float(ranks):g}"


def _nccl_labels(table: Table) -> list[str]:
    table.positive("num_gpus")
    return [_label(op, n) for op, n in zip(table.text("op"), table.text("num_gpus"), strict=True)]


def _predict_nccl(cluster: Cluster, rows: Table, label: str, law: CollectiveLaw | None) -> FloatArray:
    word = label.split("/")[0]
    kind = _KINDS[word]
    ranks = rows.positive("num_gpus")
    law = law or cluster.intra.law(kind)
    num_bytes = bus_bytes(kind, rows.positive("size_bytes"), ranks)
    return collective_law_s(law, cluster.intra.bytes_per_s, num_bytes, ranks)


def _predict_custom(cluster: Cluster, rows: Table, label: str, law: CollectiveLaw | None) -> FloatArray:
    mode = label.split("/")[0]
    known = cluster.intra.engine_laws
    law = law or known.get(mode) or cluster.intra.law("all_reduce")
    ranks = rows.positive("num_gpus")
    num_bytes = bus_bytes("all_reduce", rows.positive("size_bytes"), ranks)
    return collective_law_s(law, cluster.intra.bytes_per_s, num_bytes, ranks)


def _by_size(table: Table) -> BoolArray:
    """Every fourth power of two."""
    found: BoolArray = np.floor(np.log2(table.positive("size_bytes"))).astype(int) % 4 == 1
    return found


def _custom_labels(table: Table) -> list[str]:
    table.positive("num_gpus")
    return [f"{mode}/{float(n):g}" for mode, n in zip(table.text("mode"), table.text("num_gpus"), strict=True)]


def _slot(section: str, label: str) -> tuple[str, ...]:
    name, ranks = label.split("/")
    return ("intra", section, name, "ranks", ranks)


NCCL = TableKind(
    name="nccl",
    file="nccl",
    columns=("op", "num_gpus", "size_bytes", "time_us"),
    labels=_nccl_labels,
    predict=_predict_nccl,
    parameters=lambda _: _PARAMETERS,
    base=lambda _: CollectiveLaw(latency_s=1e-5),
    slot=lambda label: _slot("laws", label),
    held_out=_by_size,
    split="every fourth size",
    cauchy=0.04,
)

CUSTOM_ALL_REDUCE = TableKind(
    name="custom_allreduce",
    file="custom_allreduce",
    columns=("mode", "num_gpus", "size_bytes", "time_us"),
    labels=_custom_labels,
    predict=_predict_custom,
    parameters=lambda _: _PARAMETERS,
    base=lambda _: CollectiveLaw(latency_s=1e-5),
    slot=lambda label: _slot("engine_laws", label),
    held_out=_by_size,
    split="every fourth size",
    cauchy=0.04,
)
