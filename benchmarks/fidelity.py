"""Errors of the cost model on measured rows that its constants were not fitted to, by kind, beside the targets.

``python benchmarks/fidelity.py [--full DIR] [--device NAME]``: the rows in ``benchmarks/data``, or the held-out rows of
full tables in a folder.
"""

import argparse
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from autoshard.calibrate import KINDS, read_table, summary
from autoshard.calibrate.evaluate import predict_table
from autoshard.calibrate.fit import table_path
from autoshard.hardware import parse_cluster

DATA = Path(__file__).parent / "data"
# Title, kind of table, what a group's name holds, target of the median in per cent.
TARGETS: tuple[tuple[str, str, str, float | None], ...] = (
    ("GEMM bf16", "gemm", "bfloat16", 5),
    ("GEMM fp8", "gemm", "fp8$", 8),
    ("GEMM fp8 block", "gemm", "fp8_block", 9),
    ("MoE bf16", "moe", "bfloat16", 8),
    ("MoE fp8", "moe", "fp8$", 10),
    ("MoE fp8 block", "moe", "fp8_block", None),
    ("MoE mxfp4", "moe", "w4a16_mxfp4", None),
    ("decode attention", "attention_decode", "", 9),
    ("prefill attention", "attention_prefill", "", 9),
    ("MLA", "mla", "", 8),
    ("all_reduce", "nccl", "all_reduce", 3),
    ("all_gather", "nccl", "all_gather", 4),
    ("reduce_scatter", "nccl", "reduce_scatter", 3),
    ("all_to_all", "nccl", "all_to_all", 6),
    ("engines' all-reduce", "custom_allreduce", "", None),
    ("DeepEP, 4 nodes from 1-2", "deepep", "4 nodes", 10),
    ("DeepEP, one node, other engines", "deepep", "1 node", None),
)


def errors_of(folder: Path, device: str, kinds: Collection[str] = tuple(KINDS)) -> Mapping[str, tuple[Any, list[str]]]:
    """Absolute percentage errors and group names of the held-out rows of kinds."""
    cluster, found = parse_cluster(f"{device}x8"), {}
    for kind in (KINDS[name] for name in kinds):
        path = table_path(folder, kind)
        if path is None:
            continue
        table = read_table(path, kind.columns)
        table = table.take(kind.held_out(table))
        predicted, labels = predict_table(kind, table, cluster)
        if kind.name == "deepep":
            nodes = table.numbers("nodes")
            labels = [f"{label} {n:g} node{'s' if n > 1 else ''}" for label, n in zip(labels, nodes, strict=True)]
        found[kind.name] = 100.0 * np.abs(predicted / kind.measured(table) - 1.0), labels
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", type=Path, default=DATA, help="folder with full tables")
    parser.add_argument("--device", default="H100")
    given = parser.parse_args()
    errors = errors_of(given.full, given.device)
    print(f"{'kind':34s} {'rows':>6s} {'median %':>9s} {'p90 %':>7s} {'target':>7s}")
    for title, kind, word, target in TARGETS:
        if kind not in errors:
            continue
        values, labels = errors[kind]
        chosen = np.array([f"{label}$".find(word) >= 0 for label in labels])
        if not chosen.any():
            continue
        s = summary(values[chosen])
        verdict = "" if target is None else f"{target:6g}{' ' if s['median_ape'] <= target else '  missed'}"
        print(f"{title:34s} {s['rows']:6d} {s['median_ape']:9.1f} {s['p90_ape']:7.1f} {verdict}")


if __name__ == "__main__":
    main()
