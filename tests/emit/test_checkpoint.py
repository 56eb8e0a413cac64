"""Weights from safetensors files to every rank's shard, and shards back, on simulated ranks."""

import copy
import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import nn
from torch.distributed.tensor import Shard

from autoshard import emit
from autoshard._torch import FakeStore
from autoshard.emit.checkpoint import LoadReport, check_weights, distributed_state, load_weights, save_sharded
from autoshard.emit.checkpoint.files import StoredTensor, read_folder
from autoshard.emit.checkpoint.pieces import Source, assemble
from autoshard.emit.checkpoint.regions import Overlap, Region, overlaps
from autoshard.emit.checkpoint.shards import covered
from autoshard.errors import InvalidInputError, PlanMismatchError
from autoshard.ir import OpGraph
from autoshard.sharding import Degrees, Strategy
from autoshard.sharding.patterns import pattern_strategy
from tests.validate.sources import SOURCES, graph_of

MIXED = Degrees(dp=2, tp=2, ep=2, etp=2, batch=2)


@contextmanager
def rank_of_four(rank: int, graph: OpGraph, degrees: Degrees) -> Iterator[Any]:
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=4)
    try:
        yield emit.device_mesh(graph, degrees, "cpu")
    finally:
        dist.destroy_process_group()


def whole_model() -> nn.Module:
    return SOURCES["mixtral"].build(device="cpu", dtype="float32", seed=3)


@cache
def meta_model_to_check() -> nn.Module:
    """One for all tests that only look at it."""
    return meta_model()


def meta_model() -> nn.Module:
    return SOURCES["mixtral"].build(dtype="float32")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As transformers writes it: a tensor per expert, several files."""
    folder = tmp_path_factory.mktemp("checkpoint")
    whole_model().save_pretrained(folder, max_shard_size="100KB")  # type: ignore[operator]
    names = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    assert "model.layers.0.block_sparse_moe.experts.7.w3.weight" in names
    return folder


def assert_same_shards(got: nn.Module, want: nn.Module) -> None:
    wanted = dict(want.named_parameters(remove_duplicate=False))
    for name, p in got.named_parameters(remove_duplicate=False):
        assert torch.equal(p.to_local(), wanted[name].to_local()), name  # type: ignore[attr-defined]
    buffers = dict(want.named_buffers())
    for name, b in got.named_buffers():
        assert torch.equal(b, buffers[name]), name


def test_regions_by_hand() -> None:
    # gate|up of 4 + 4 rows, the second of two ranks: rows 2, 3 of the gate and 6, 7 of the up.
    second = Region.whole((8, 3)).cut(0, 2, 1, packed=2)
    assert second == Region((((2, 4), (6, 8)), ((0, 3),)))
    assert second.shape == (4, 3)
    # A file with rows 3 to 6 shares row 3 (its first, our second) and row 6 (its last, our third).
    held = Region((((3, 7),), ((0, 3),)))
    assert list(overlaps(held, second)) == [
        Overlap((0, 0), (1, 0), (1, 3)),
        Overlap((3, 0), (2, 0), (1, 3)),
    ]
    # Neighbouring runs become one.
    assert Region.whole((8,)).cut(0, 2, 0, packed=1) == Region((((0, 4),),))


@pytest.mark.parametrize("rank", [0, 3])
def test_every_rank_gets_the_shards_of_the_whole_model(rank: int, checkpoint: Path) -> None:
    graph = graph_of("mixtral")
    strategy = pattern_strategy(graph, MIXED, "megatron")
    with rank_of_four(rank, graph, MIXED) as mesh:
        want = emit.apply(whole_model(), graph, strategy, mesh)
        got = emit.apply(meta_model(), graph, strategy, mesh)
        report = load_weights(got, graph, strategy, mesh, checkpoint)
        assert_same_shards(got, want)
    held = sum(p.to_local().numel() * 4 for p in want.parameters())  # type: ignore[attr-defined]
    assert report.shard_bytes == held
    # o is split by columns, 2 layers of 64 x 64 floats: its other half is read and dropped; down of the experts too,
    # this rank's 4 experts of 64 x 96. Everything else is read as it is kept.
    assert report.read_bytes - held == 2 * 64 * 64 * 4 // 2 + 2 * 4 * 64 * 96 * 4 // 2
    assert report.moved_bytes == 0


def test_dtype_is_converted_only_when_asked(checkpoint: Path) -> None:
    graph = graph_of("mixtral")
    strategy = pattern_strategy(graph, MIXED, "megatron")
    model = SOURCES["mixtral"].build(dtype="bfloat16")
    with pytest.raises(
        InvalidInputError, match="is float32, the model has .* in bfloat16; build the model in float32, or"
    ):
        check_weights(model, graph, strategy, checkpoint)
    with rank_of_four(1, graph, MIXED) as mesh:
        want = emit.apply(whole_model().to(torch.bfloat16), graph, strategy, mesh)
        got = emit.apply(model, graph, strategy, mesh)
        load_weights(got, graph, strategy, mesh, checkpoint, cast=True)
        for (name, p), (_, q) in zip(got.named_parameters(), want.named_parameters(), strict=True):
            assert torch.equal(p.to_local(), q.to_local()), name  # type: ignore[attr-defined]


def with_header(data: bytes, how: str) -> bytes:
    """A safetensors file with a header that a writer of the format would not make."""
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    first, second = [n for n, e in header.items() if n != "__metadata__" and e["shape"] == [64]][:2]
    if how == "overlap":
        header[second]["data_offsets"] = header[first]["data_offsets"]
    if how == "malformed":
        header[first]["shape"] = ["64"]
    text = json.dumps(header)
    if how == "twice":
        text = text[:-1] + f', "{first}": {json.dumps(header[second])}' + "}"
    return len(text).to_bytes(8, "little") + text.encode() + data[8 + length :]


def broken(checkpoint: Path, folder: Path, how: str) -> Path:
    """A copy of the checkpoint in one file, broken."""
    tensors: dict[str, torch.Tensor] = {}
    for file in sorted(checkpoint.glob("*.safetensors")):
        tensors |= load_file(file)
    expert = "model.layers.1.block_sparse_moe.experts.5.w2.weight"
    match how:
        case "missing":
            del tensors["model.norm.weight"]
        case "missing expert":
            del tensors[expert]
        case "unknown":
            tensors["model.layers.9.self_attn.q_proj.weight"] = torch.zeros(4)
        case "shape":
            tensors["lm_head.weight"] = torch.zeros(255, 64)
        case "expert shape":
            tensors[expert] = torch.zeros(64, 97)
        case "quantised":
            tensors["lm_head.weight"] = tensors["lm_head.weight"].to(torch.float8_e4m3fn)
    path = folder / "model.safetensors"
    save_file(tensors, path)
    data = path.read_bytes()
    if how == "truncated":
        path.write_bytes(data[:-1])
    if how == "header":
        path.write_bytes(data[:8] + b"[" + data[9:])
    if how == "length":
        path.write_bytes((10**12).to_bytes(8, "little") + data[8:])
    if how == "offsets":
        path.write_bytes(data.replace(b'"data_offsets":[0,', b'"data_offsets":[8,', 1))
    if how in ("twice", "malformed", "overlap"):
        path.write_bytes(with_header(data, how))
    if how == "pickled":
        path.rename(folder / "pytorch_model.bin")
    return folder


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("missing", "no tensor for model.norm.weight"),
        ("missing expert", r"has \d+ of the \d+ elements of model.layers.1.mlp.experts.down_proj"),
        ("unknown", "model.layers.9.self_attn.q_proj.weight .* that the model has no place for"),
        ("shape", r"lm_head.weight is \(255, 64\), the plan has lm_head.weight as \(256, 64\)"),
        ("expert shape", r"w2.weight \(64, 97\) lies outside of"),
        ("quantised", "lm_head.weight is float8_e4m3fn, the model has .*; quantised weights are not converted"),
        ("truncated", r"is truncated: \d+ bytes, its tensors end at \d+"),
        ("header", "is no safetensors file: its header is not JSON"),
        ("length", "is no safetensors file or is truncated"),
        ("offsets", r"has \d+ bytes, needs \d+"),
        ("twice", r"is not JSON or names a tensor twice .model.*norm.weight"),
        ("malformed", "header is malformed .*'64' is no size"),
        ("overlap", "overlaps another tensor"),
        ("pickled", "0 safetensors files .*; pickled weights are never loaded, convert them to safetensors"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused_before_anything_happens(
    how: str, message: str, checkpoint: Path, tmp_path: Path
) -> None:
    graph = graph_of("mixtral")
    with pytest.raises(InvalidInputError, match=message) as error:
        strategy = pattern_strategy(graph, MIXED, "megatron")
        check_weights(meta_model_to_check(), graph, strategy, broken(checkpoint, tmp_path, how))
    assert "\n" not in str(error.value)


def test_a_checkpoint_that_does_not_fit_leaves_the_model_alone(checkpoint: Path, tmp_path: Path) -> None:
    graph = graph_of("mixtral")
    strategy = pattern_strategy(graph, MIXED, "megatron")
    with rank_of_four(0, graph, MIXED) as mesh:
        model = emit.apply(meta_model(), graph, strategy, mesh)
        before = {n: id(p) for n, p in model.named_parameters()}
        with pytest.raises(InvalidInputError, match="no tensor for model.norm.weight"):
            load_weights(model, graph, strategy, mesh, broken(checkpoint, tmp_path, "missing"))
        assert {n: id(p) for n, p in model.named_parameters()} == before
        assert all(p.to_local().is_meta for p in model.parameters())  # type: ignore[attr-defined]


def test_a_file_that_ends_while_it_is_read_leaves_the_model_alone(checkpoint: Path, tmp_path: Path) -> None:
    graph = graph_of("mixtral")
    strategy = pattern_strategy(graph, MIXED, "megatron")
    folder = broken(checkpoint, tmp_path, "none")
    with rank_of_four(0, graph, MIXED) as mesh:
        model = emit.apply(meta_model(), graph, strategy, mesh)
        checked = check_weights(model, graph, strategy, folder)
        path = folder / "model.safetensors"
        path.write_bytes(path.read_bytes()[:-1000])
        with pytest.raises(InvalidInputError, match="ended while it was read"):
            load_weights(model, graph, strategy, mesh, folder, checked=checked)
        assert all(p.to_local().is_meta for p in model.parameters())  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"weight_map": {"a": "../a.safetensors"}}', "names a file outside its folder: '../a"),
        ('{"weight_map": {"a": ".."}}', "names a file outside its folder: '..'"),
        ('{"weight_map": {"a": "/etc/passwd"}}', "names a file outside its folder: '/etc"),
        ('{"weight_map": {"a": "a.safetensors", "a": "b.safetensors"}}', "names a twice"),
        ('{"weight_map": {"a": "a.safetensors"}}', "cannot read .*a.safetensors: No such file"),
        ("[]", "is no index of a safetensors checkpoint"),
    ],
)
def test_an_index_is_data_that_is_checked(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(InvalidInputError, match=message):
        read_folder(tmp_path)
    with pytest.raises(InvalidInputError, match="no such file or folder"):
        read_folder(tmp_path / "elsewhere")


def test_parts_must_make_up_their_tensor() -> None:
    # (4, 2): its halves; the same half twice has as many elements; a part that ends outside; rows in the wrong order.
    first, second = Region((((0, 2),), ((0, 2),))), Region((((2, 4),), ((0, 2),)))
    assert covered((4, 2), (first, second)) and covered((), (Region(()),))
    assert not covered((4, 2), (first, first))
    assert not covered((4, 2), (first, Region((((2, 5),), ((0, 2),)))))
    assert not covered((4, 2), (Region((((2, 4), (0, 2)), ((0, 2),))),))
    assert not covered((4, 2), (Region((((0, 4),),)),))


def save_all(folder: Path, strategy: Strategy) -> int:
    """All four ranks save, one after the other; bytes they wrote together."""
    graph, written = graph_of("mixtral"), 0
    for rank in (3, 2, 1, 0):
        with rank_of_four(rank, graph, strategy.degrees) as mesh:
            written += save_sharded(emit.apply(whole_model(), graph, strategy, mesh), graph, strategy, folder)
    return written


def load_on(rank: int, folder: Path, strategy: Strategy, **options: bool) -> LoadReport:
    graph = graph_of("mixtral")
    with rank_of_four(rank, graph, strategy.degrees) as mesh:
        want = emit.apply(whole_model(), graph, strategy, mesh)
        got = emit.apply(meta_model(), graph, strategy, mesh)
        report = load_weights(got, graph, strategy, mesh, folder, **options)
        assert_same_shards(got, want)
    return report


def test_shards_are_written_once_and_resumed_or_resharded(tmp_path: Path) -> None:
    graph = graph_of("mixtral")
    saved = pattern_strategy(graph, MIXED, "megatron")
    total = sum(p.numel() * 4 for p in whole_model().parameters())
    assert save_all(tmp_path, saved) == total  # parts that two ranks hold are written once
    # rank 0 holds the first of every part, so it reads only its own file.
    assert load_on(0, tmp_path, saved).moved_bytes == 0
    other = pattern_strategy(graph, Degrees(tp=4, ep=4), "gather_out")
    with pytest.raises(
        PlanMismatchError, match="saved under another plan .*pp=1 dp=2 tp=2 ep=2 etp=2, not .*reshard=True"
    ):
        load_on(1, tmp_path, other)
    report = load_on(1, tmp_path, other, reshard=True)
    # Rank 1 of (dp 2, tp 2, ep 2, etp 2) has written: of the experts' first 4, the second half of every matrix; of what
    # lies on tp, the second half. As rank 1 of tp=4, ep=4 it wants experts 2 and 3 whole: half of them is another's.
    experts = 2 * 2 * (192 * 64 + 64 * 96) * 4
    # q, o (64 x 64), k, v (32 x 64) rows, head (256 x 64 rows): its second quarter lies in the first half: rank 0's.
    # The embedding is split by columns now, by rows then: half of its quarter is rank 0's, like norms and routers.
    quarter = 2 * (2 * 64 * 64 + 2 * 32 * 64) * 4 // 4 + 256 * 64 * 4 // 4
    small = (2 * 2 + 1) * 64 * 4 + 2 * 8 * 64 * 4
    # o was split by columns: of the rows that rank 1 wants now, the second half of the columns is its own.
    own_o = 2 * 64 * 64 * 4 // 4 // 2
    assert report.moved_bytes == experts // 2 + quarter - own_o + 256 * 64 * 4 // 4 // 2 + small


STAGES = Degrees(pp=2, dp=2, ep=2, batch=4)


@pytest.mark.parametrize("name", ["mixtral", "llama-tied"])
def test_stages_save_what_they_hold_and_load_it_again(name: str, tmp_path: Path) -> None:
    """Two stages of two ranks: loaded from files of a whole model, saved, and loaded again, in stages or in one."""
    graph, build = graph_of(name), partial(SOURCES[name].build, dtype="float32")
    staged = pattern_strategy(graph, STAGES, "megatron")
    single = pattern_strategy(graph, Degrees(tp=2, dp=2, ep=2, etp=2, batch=2), "megatron")
    build(device="cpu", seed=3).save_pretrained(tmp_path / "whole")  # type: ignore[operator]
    written = 0
    for rank in (3, 2, 1, 0):
        with rank_of_four(rank, graph, STAGES) as mesh:
            model = emit.apply(build(), graph, staged, mesh)
            load_weights(model, graph, staged, mesh, tmp_path / "whole")
            written += save_sharded(model, graph, staged, tmp_path / "shards")
    # Every part once: of the tied llama, the one matrix of embedding and head too, though both stages hold it.
    assert written == sum(p.numel() * 4 for p in build().parameters())
    manifest = json.loads((tmp_path / "shards" / "autoshard.shards.json").read_text())["tensors"]
    files = {n: {part["file"][:10] for part in e["parts"]} for n, e in manifest.items()}
    assert files["model.layers.1.self_attn.q_proj.weight"] == {"rank-00002"}  # dp ranks 2 and 3 hold the same
    assert files["model.embed_tokens.weight"] == {"rank-00000"} and files["model.norm.weight"] == {"rank-00002"}
    for rank, strategy, reshard in ((1, staged, False), (2, staged, False), (3, single, True)):
        with rank_of_four(rank, graph, strategy.degrees) as mesh:
            want = emit.apply(build(device="cpu", seed=3), graph, strategy, mesh)
            got = emit.apply(build(), graph, strategy, mesh)
            report = load_weights(got, graph, strategy, mesh, tmp_path / "shards", reshard=reshard)
            assert_same_shards(got, want)
            assert report.read_bytes >= report.shard_bytes > 0
    with pytest.raises(PlanMismatchError, match="saved under another plan .pp=2 dp=2 .* not pp=1 dp=2"):
        check_weights(build(), graph, single, tmp_path / "shards")


def test_a_manifest_is_data_that_is_checked(tmp_path: Path) -> None:
    graph = graph_of("mixtral")
    strategy = pattern_strategy(graph, MIXED, "megatron")
    save_all(tmp_path, strategy)
    path = tmp_path / "autoshard.shards.json"
    data = json.loads(path.read_text())
    for change, message in (
        (lambda d: d["tensors"]["lm_head.weight"]["parts"].pop(), "parts of lm_head.weight do not make up"),
        (lambda d: d["tensors"]["lm_head.weight"]["parts"][0].update(file="../x"), "is no manifest of shards"),
        (lambda d: d["tensors"]["lm_head.weight"]["parts"][0].update(region=[[[0, 9]]] * 2), "says .9, 9."),
        (lambda d: d.update(model="other"), "saved under another plan .of another model."),
    ):
        edited = copy.deepcopy(data)
        change(edited)
        path.write_text(json.dumps(edited))
        with pytest.raises((InvalidInputError, PlanMismatchError), match=message):
            check_weights(meta_model_to_check(), graph, strategy, tmp_path)


def test_torch_checkpoints_see_boxes() -> None:
    """gate|up (8, 192, 64), strided over etp: shown as (8, 2, 96, 64), the third dim sharded, in the same memory."""
    graph = graph_of("mixtral")
    strategy = pattern_strategy(graph, MIXED, "megatron")
    with rank_of_four(3, graph, MIXED) as mesh:
        model = emit.apply(whole_model(), graph, strategy, mesh)
        name = "model.layers.0.mlp.experts.gate_up_proj"
        shown: Any = distributed_state(model, graph, strategy)[name]
        assert tuple(shown.shape) == (8, 2, 96, 64)
        assert tuple(shown.placements) == (Shard(0), Shard(2))
        parameter: Any = model.get_parameter(name)
        assert shown.to_local().data_ptr() == parameter.to_local().data_ptr()
        whole = whole_model().get_parameter(name).detach().view(8, 2, 96, 64)
        assert torch.equal(shown.to_local(), whole[4:, :, 48:])
        with pytest.raises(PlanMismatchError, match="was not applied"):
            distributed_state(whole_model(), graph, strategy)


def round_trip(rank: int, folder: str) -> None:
    """Save under one plan; load under it and under another, on real ranks."""
    import torch.distributed.checkpoint as dcp

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    graph = graph_of("mixtral")
    for i, degrees in enumerate((Degrees(tp=2, etp=2), Degrees(dp=2, ep=2, batch=2), Degrees(pp=2, batch=2))):
        strategy, mesh = pattern_strategy(graph, degrees, "megatron"), emit.device_mesh(graph, degrees, "cpu")
        want = emit.apply(whole_model(), graph, strategy, mesh)
        dcp.save(distributed_state(want, graph, strategy), checkpoint_id=f"{folder}/dcp{i}")
        for saved in {0, i}:
            got = emit.apply(SOURCES["mixtral"].build(device="cpu", dtype="float32", seed=9), graph, strategy, mesh)
            dcp.load(distributed_state(got, graph, strategy), checkpoint_id=f"{folder}/dcp{saved}")
            assert_same_shards(got, want)
    # What stages saved, loaded in one.
    degrees = Degrees(tp=2, etp=2)
    strategy, mesh = pattern_strategy(graph, degrees, "megatron"), emit.device_mesh(graph, degrees, "cpu")
    got = emit.apply(SOURCES["mixtral"].build(device="cpu", dtype="float32", seed=9), graph, strategy, mesh)
    dcp.load(distributed_state(got, graph, strategy), checkpoint_id=f"{folder}/dcp2")
    assert_same_shards(got, emit.apply(whole_model(), graph, strategy, mesh))
    dist.destroy_process_group()


@pytest.mark.wide
def test_torch_distributed_checkpoint_round_trip(tmp_path: Path) -> None:
    import torch.multiprocessing as mp

    mp.start_processes(round_trip, args=(str(tmp_path),), nprocs=2, start_method="spawn")  # type: ignore[no-untyped-call]


def test_parts_of_unequal_width_lie_one_after_the_other() -> None:
    # q (6 rows), k and v (2 rows each) of one matrix of 10 rows: 0-6, 6-8, 8-10.
    def source(name: str, rows: int, part: int) -> Source:
        stored = StoredTensor(Path("f"), name, torch.float32, (rows, 4), 0)
        return Source(stored, part, 3, 0, None)

    sources = [source("v", 2, 2), source("q", 6, 0), source("k", 2, 1)]
    found = {p.stored.name: p.region.dims[0] for p in assemble("qkv", (10, 4), sources)}
    assert found == {"q": ((0, 6),), "k": ((6, 8),), "v": ((8, 10),)}
    with pytest.raises(InvalidInputError, match="the part before v of qkv .10, 4. is missing"):
        assemble("qkv", (10, 4), [sources[0], sources[1]])
