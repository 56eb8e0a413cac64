"""Measures this machine and turns what it finds into a cluster file.

Peaks are what was reached: the fastest product gives the arithmetic, the fastest copy the memory. Laws are fitted to
the rows; whatever is not timed (other formats, MLA, dispatch, and links unless run under torchrun) keeps the constants
of a shipped device, and the file says so.
"""

import csv
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from autoshard.calibrate.device_text import dump, entry
from autoshard.calibrate.evaluate import summary
from autoshard.calibrate.kinds import KINDS
from autoshard.calibrate.measure import operations as op
from autoshard.calibrate.optimise import FloatArray, Parameter, fit_positive
from autoshard.calibrate.tables import Table
from autoshard.errors import InvalidInputError
from autoshard.hardware import Cluster, CollectiveLaw, Device, KernelLaw, Link, parse_cluster
from autoshard.units import GB, GIB, TB, TFLOPS, US

_KERNELS = {
    "gemm": "gemm",
    "moe": "grouped_gemm",
    "attention_decode": "attention_decode",
    "attention_prefill": "attention_prefill",
}
_LAW = (
    Parameter("launch_s", 1e-5, 1e-8, 1e-1),
    Parameter("memory_efficiency", 0.5, 1e-4, 1.0),
    Parameter("compute_efficiency", 0.5, 1e-4, 1.0),
)
_COLLECTIVE = (Parameter("latency_s", 1e-5, 1e-8, 1e-1), Parameter("efficiency", 0.5, 1e-4, 1.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurements:
    """Rows by kind of table, and the device and link that they give."""

    name: str
    like: str
    num_devices: int
    where: str
    rows: dict[str, list[op.Row]]
    device: Device
    intra: Link | None
    errors: dict[str, dict[str, Any]] = field(default_factory=dict)

    def write_tables(self, folder: Path) -> None:
        """The rows, as CSV files that ``calibrate eval`` and ``fit`` read."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for kind, rows in self.rows.items():
                with (folder / f"{kind}_{self.name}.csv").open("w", newline="", encoding="utf-8") as file:
                    writer = csv.DictWriter(file, list(rows[0]))
                    writer.writeheader()
                    writer.writerows(rows)
        except OSError as error:
            raise InvalidInputError(f"cannot write tables to {folder}: {error}") from error

    def cluster_text(self) -> str:
        """A cluster file for ``--cluster``."""
        device = self.device
        kernels = {
            kind: {"bfloat16": entry(device.kernels[kind]["bfloat16"])} for kind in (*_KERNELS.values(), "memory")
        }
        link: dict[str, Any] = {"gb_per_s": 1.0}
        base = parse_cluster(f"{self.like}x8")
        if self.intra is None:
            link = {"gb_per_s": base.intra.bytes_per_s / GB, "laws_like": self.like}
        else:
            size = str(self.num_devices)
            laws = {kind: {"ranks": {int(size): entry(law.by_ranks[0][1])}} for kind, law in self.intra.laws.items()}
            link = {"gb_per_s": float(f"{self.intra.bytes_per_s / GB:.4g}"), "laws": laws}
        data = {
            "name": self.name,
            "num_devices": self.num_devices,
            "device": {
                "name": self.name,
                "tflops": {dtype: float(f"{v / TFLOPS:.4g}") for dtype, v in device.flops_per_s.items()},
                "memory_gib": float(f"{device.memory_bytes / GIB:.4g}"),
                "memory_tb_per_s": float(f"{device.memory_bytes_per_s / TB:.4g}"),
                "units": device.num_units,
                "kernels_like": self.like,
                "kernels": kernels,
                "intra": link,
                "inter": {"gb_per_s": base.inter.bytes_per_s / GB, "laws_like": self.like, "latency_us": 20.0},
            },
        }
        head = f"# [measured: {self.where}, autoshard calibrate measure]; the rest is [inherited: {self.like}].\n"
        return head + dump(data)

    def report(self) -> dict[str, Any]:
        """What was found, for ``--json``."""
        return {
            "name": self.name,
            "where": self.where,
            "num_devices": self.num_devices,
            "tflops": self.device.flops_per_s["bfloat16"] / TFLOPS,
            "memory_tb_per_s": self.device.memory_bytes_per_s / TB,
            "rows": {kind: len(rows) for kind, rows in self.rows.items()},
            "errors": self.errors,
        }


def _table(kind: str, rows: Iterable[op.Row]) -> Table:
    listed = list(rows)
    return Table(f"measured {kind}", {name: tuple(str(row[name]) for row in listed) for name in listed[0]})


def measure_machine(
    *, device: str, name: str, like: str, quick: bool, progress: Callable[[str], None] = lambda _: None
) -> Measurements | None:
    """Time everything; None on the ranks of a torchrun job that are not the first.

    Raises:
        InvalidInputError: for a device that this machine does not have, or an unknown ``like``.
    """
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device not in {"cpu", "cuda"} or (device == "cuda" and not torch.cuda.is_available()):
        raise InvalidInputError(f"cannot measure on {device!r}: this machine has cpu{has_cuda()}")
    base = parse_cluster(f"{like}x8")
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    local = torch.device("cpu")
    if device == "cuda":
        local = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(local)
    sizes = op.QUICK if quick else op.FULL
    rows: dict[str, list[op.Row]] = {}
    collectives: list[op.Row] = []
    if ranks > 1:
        progress("timing collectives")
        dist.init_process_group("nccl" if device == "cuda" else "gloo")
        try:
            collectives = list(op.collective_rows(sizes, local))
            first = dist.get_rank() == 0
        finally:
            dist.destroy_process_group()
        if not first:
            return None
    with torch.no_grad():
        for kind, make in (
            ("copy", op.copy_rows(sizes, local)),
            ("gemm", op.gemm_rows(sizes, local)),
            ("moe", op.moe_rows(sizes, local)),
            ("attention_decode", op.attention_rows(sizes, local, prefill=False)),
            ("attention_prefill", op.attention_rows(sizes, local, prefill=True)),
        ):
            progress(f"timing {kind}")
            rows[kind] = list(make)
    if collectives:
        rows["nccl"] = collectives
    return _fitted(rows, base, local, name=name, like=like, ranks=ranks)


def has_cuda() -> str:
    """``" and cuda"`` on a machine that has it, for messages."""
    return " and cuda" if torch.cuda.is_available() else ""


def _fitted(
    rows: dict[str, list[op.Row]], base: Cluster, local: torch.device, *, name: str, like: str, ranks: int
) -> Measurements:
    if local.type == "cuda":
        properties = torch.cuda.get_device_properties(local)
        where, memory, units = properties.name, float(properties.total_memory), properties.multi_processor_count
    else:
        where, units = f"{os.cpu_count()} CPU cores, torch {torch.__version__}", os.cpu_count() or 1
        memory = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    gemm, copies = _table("gemm", rows["gemm"]), _table("copy", rows["copy"])
    flops = 2.0 * gemm.positive("m") * gemm.positive("n") * gemm.positive("k") / (gemm.positive("time_us") * US)
    moved = 2.0 * copies.positive("size_bytes") / (copies.positive("time_us") * US)
    device = replace(
        base.device,
        name=name,
        flops_per_s={"bfloat16": float(flops.max())},
        memory_bytes=memory,
        memory_bytes_per_s=float(moved.max()),
        num_units=units,
        kernels={kind: dict(laws) for kind, laws in base.device.kernels.items()},
    )
    floor_s = float((copies.positive("time_us") * US).min())
    memory_law = KernelLaw(compute_efficiency=1.0, memory_efficiency=1.0, launch_s=floor_s, source="[measured: copies]")
    device = replace(device, kernels={**device.kernels, "memory": {"bfloat16": memory_law}})
    cluster = replace(base, device=device)
    errors: dict[str, dict[str, Any]] = {}
    for kind, kernel in _KERNELS.items():
        law, errors[kind] = _fit_law(kind, _table(kind, rows[kind]), cluster)
        device = replace(device, kernels={**device.kernels, kernel: {"bfloat16": law}})
        cluster = replace(cluster, device=device)
    intra = None
    if "nccl" in rows:
        intra, errors["nccl"] = _fit_link(_table("nccl", rows["nccl"]), cluster)
    return Measurements(
        name=name, like=like, num_devices=ranks, where=where, rows=rows, device=device, intra=intra, errors=errors
    )


def _fit_law(kind: str, table: Table, cluster: Cluster) -> tuple[KernelLaw, dict[str, Any]]:
    """A plain roofline for one kind of kernel: too few rows for more."""
    label, measured = KINDS[kind].labels(table)[0], KINDS[kind].measured(table)

    def law(values: FloatArray) -> KernelLaw:
        given = {p.field: float(v) for p, v in zip(_LAW, values, strict=True)}
        return KernelLaw(**given, source=f"[measured: {len(table)} rows]")

    def predict(values: FloatArray) -> FloatArray:
        return KINDS[kind].predict(cluster, table, label, law(values))

    values = fit_positive(predict, _LAW, measured)
    return law(values), summary(100.0 * np.abs(predict(values) / measured - 1.0))


def _fit_link(table: Table, cluster: Cluster) -> tuple[Link, dict[str, Any]]:
    """Latency and rate of every collective, relative to the fastest."""
    kind = KINDS["nccl"]
    labels, measured = np.array(kind.labels(table)), kind.measured(table)
    ranks = int(table.positive("num_gpus")[0])
    rate = float((table.positive("size_bytes") / measured).max()) * 2.0
    cluster = replace(cluster, intra=Link(bytes_per_s=rate))
    laws, errors = {}, np.empty(len(table))
    for label in dict.fromkeys(labels.tolist()):
        index = np.flatnonzero(labels == label)
        rows, seconds = table.take(index), measured[index]

        def law(values: FloatArray) -> CollectiveLaw:
            return CollectiveLaw(latency_s=float(values[0]), efficiency=float(values[1]))

        def predict(values: FloatArray, rows: Table = rows, label: str = label) -> FloatArray:
            return kind.predict(cluster, rows, label, law(values))

        values = fit_positive(predict, _COLLECTIVE, seconds)
        errors[index] = 100.0 * np.abs(predict(values) / seconds - 1.0)
        found = law(values)
        laws[label.split("/")[0]] = replace(found, by_ranks=((ranks, found),))
    return replace(cluster.intra, laws=laws), summary(errors)
