"""Fits recover the constants that made a table; kinds read what they must and refuse what they cannot."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from autoshard.calibrate import KINDS, Table, evaluate_table, fit_folder, read_table
from autoshard.calibrate.device_text import MARKER, device_text, entry
from autoshard.calibrate.fit import fit_table, table_path
from autoshard.calibrate.optimise import Parameter, fit_positive
from autoshard.cost import gemm_law_s
from autoshard.errors import InvalidInputError
from autoshard.hardware import CollectiveLaw, DispatchLaw, KernelLaw, device_file_text, parse_cluster

H100 = parse_cluster("H100x8")
DATA = Path(__file__).parents[2] / "benchmarks" / "data"


def table(**columns: list[object]) -> Table:
    return Table("rows", {name: tuple(str(cell) for cell in cells) for name, cells in columns.items()})


def test_fit_recovers_parameters_despite_outliers() -> None:
    x = np.logspace(0, 4, 200)
    y = 3.0 + x / 50.0
    y[::10] *= 5.0
    parameters = (Parameter("a", 1.0, 0.1, 100.0), Parameter("b", 10.0, 1.0, 1000.0))
    found = fit_positive(lambda p: p[0] + x / p[1], parameters, y)
    assert found == pytest.approx([3.0, 50.0], rel=1e-2)


def test_fit_keeps_within_bounds() -> None:
    found = fit_positive(lambda p: p[0] * np.ones(5), (Parameter("a", 1.0, 0.5, 2.0),), np.full(5, 9.0))
    assert found == pytest.approx([2.0])


def test_a_table_made_by_a_law_is_fitted_exactly() -> None:
    law = KernelLaw(compute_efficiency=0.7, memory_efficiency=0.8, launch_s=5e-6, tile_edge=4.0, overlap=2.0)
    sizes = [(m, n, k) for m in (1, 64, 512, 4096) for n in (512, 1024, 4096) for k in (512, 2048, 8192)]
    times = [float(gemm_law_s(H100.device, law, m, k, n)) * 1e6 for m, n, k in sizes]
    m, n, k = (list(column) for column in zip(*sizes, strict=True))
    rows = table(framework=["x"] * 36, gemm_dtype=["bfloat16"] * 36, m=m, n=n, k=k, time_us=times)
    (group,) = fit_table(KINDS["gemm"], rows, H100)
    assert group.slot == ("kernels", "gemm", "x/bfloat16")
    assert group.fitted["median_ape"] < 2.0
    assert group.law.launch_s == pytest.approx(5e-6, rel=0.1)
    assert "[fitted: rows x/bfloat16" in group.law.source


@pytest.mark.parametrize("kind", list(KINDS))
def test_shipped_constants_hold_on_carried_rows(kind: str) -> None:
    path = table_path(DATA, KINDS[kind])
    assert path is not None
    rows = read_table(path, KINDS[kind].columns)
    found = evaluate_table(KINDS[kind], rows, H100)
    assert found["rows"] == len(rows) == sum(group["rows"] for group in found["by"].values())
    assert found["median_ape"] < 12.0


@pytest.mark.parametrize("device", ["H200", "A100", "B200", "GB200", "MI300X", "L40S", "H20"])
def test_every_device_predicts_every_kind(device: str) -> None:
    cluster = parse_cluster(f"{device}x8")
    for kind in KINDS.values():
        path = table_path(DATA, kind)
        assert path is not None
        rows = read_table(path, kind.columns)
        assert evaluate_table(kind, rows.take(np.arange(0, len(rows), 40)), cluster)["median_ape"] >= 0


def test_unknown_frameworks_take_a_relative() -> None:
    row = {"gemm_dtype": ["fp8_block"], "m": [128], "n": [4096], "k": [4096], "time_us": [14.0]}
    found = evaluate_table(KINDS["gemm"], table(framework=["new"], **row), H100)
    assert found["median_ape"] < 40 and list(found["by"]) == ["new/fp8_block"]
    assert evaluate_table(KINDS["gemm"], table(**row), H100)["rows"] == 1  # no framework column at all


def test_no_kv_heads_means_as_many_as_queries() -> None:
    row = {"kv_cache_dtype": ["bfloat16"], "batch_size": [8], "ctx_len": [4096], "num_heads": [8], "head_dim": [128]}
    zero = evaluate_table(KINDS["attention_decode"], table(**row, num_key_value_heads=[0], time_us=[60]), H100)
    full = evaluate_table(KINDS["attention_decode"], table(**row, num_key_value_heads=[8], time_us=[60]), H100)
    assert zero["median_ape"] == full["median_ape"]


def test_a_window_bounds_the_context() -> None:
    row = {"kv_cache_dtype": ["bfloat16"], "batch_size": [8], "num_heads": [8], "num_key_value_heads": [8]}
    row |= {"head_dim": [128], "time_us": [20]}
    windowed = evaluate_table(KINDS["attention_decode"], table(**row, ctx_len=[65536], window_size=[128]), H100)
    short = evaluate_table(KINDS["attention_decode"], table(**row, ctx_len=[128]), H100)
    assert windowed["median_ape"] == short["median_ape"]


@pytest.mark.parametrize(
    ("kind", "change", "part"),
    [
        ("gemm", {"gemm_dtype": "int3"}, "unknown number format 'int3'"),
        ("gemm", {"time_us": 0}, "time_us must be positive"),
        ("moe", {"distribution": "zipf"}, "unknown distribution 'zipf'"),
        ("moe", {"moe_ep_size": 3}, "must divide"),
        ("nccl", {"op": "gossip"}, "unknown collective 'gossip'"),
        ("mla", {"phase": "dreaming"}, "unknown phase 'dreaming'"),
        ("deepep", {"phase": "notify"}, "unknown phase 'notify'"),
    ],
)
def test_cells_that_make_no_sense(kind: str, change: dict[str, object], part: str) -> None:
    path = table_path(DATA, KINDS[kind])
    assert path is not None
    first = read_table(path).take(np.array([0]))
    wrong = Table("rows", {**first.columns, **{name: (str(cell),) for name, cell in change.items()}})
    with pytest.raises(InvalidInputError, match=part):
        evaluate_table(KINDS[kind], wrong, H100)


def test_device_text_keeps_the_head_and_loads_again(tmp_path: Path) -> None:
    cluster = replace(H100, name="again")
    path = table_path(DATA, KINDS["nccl"])
    assert path is not None
    groups = list(fit_table(KINDS["nccl"], read_table(path), cluster))
    text = device_text(device_file_text("H100"), groups)
    assert text.split(MARKER)[0].rstrip() == device_file_text("H100").split(MARKER)[0].rstrip()
    data = yaml.safe_load(text)
    file = tmp_path / "lab.yaml"
    file.write_text(yaml.safe_dump({"name": "lab", "num_devices": 8, "device": data}))
    law = parse_cluster(str(file)).intra.law("all_gather")
    assert [ranks for ranks, _ in law.by_ranks] == [2, 4, 8] and "held out" in law.source
    assert device_text(device_file_text("H100"), []) == device_file_text("H100")


@pytest.mark.parametrize(
    "law",
    [
        KernelLaw(compute_efficiency=0.5, memory_efficiency=1.0, launch_s=2e-6, tile_edge=3.0, source="[x]"),
        CollectiveLaw(latency_s=1e-6, efficiency=0.5, step_s=1e-6, step_bytes=1e4),
        DispatchLaw(latency_s=1e-6, deduplicated=True),
    ],
)
def test_entries_leave_out_what_is_off(law: KernelLaw | CollectiveLaw | DispatchLaw) -> None:
    found = entry(law)
    assert not set(found) & {"overlap", "throttle", "half_rate_units", "latency_per_rank_us"}
    assert found.get("launch_us", found.get("latency_us")) in {1.0, 2.0}


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="no measured tables"):
        fit_folder(tmp_path, H100)
