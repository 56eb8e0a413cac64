import pytest

from autoshard.errors import InvalidInputError
from autoshard.sharding import Degrees, stage_mesh
from autoshard.sharding.degrees import kv_split


def test_one_mesh_refines_both_views() -> None:
    mesh = stage_mesh(dp=4, tp=4, ep=8, kv=4)
    assert mesh.size("dp") == 4 and mesh.size("tp") == 4 and mesh.size("ep") == 8 and mesh.size("etp") == 2
    assert mesh.size("tp_ep") == 2 and mesh.size("tp_etp") == 2 and mesh.size("dp_etp") == 1
    assert [size for _, size in mesh.dims if size > 1] == [4, 2, 2]


def test_ep_inside_dp() -> None:
    mesh = stage_mesh(dp=8, tp=2, ep=4, kv=2)
    assert (mesh.size("dp_ep"), mesh.size("dp_etp"), mesh.size("etp")) == (4, 2, 4)


def test_kv_heads_split_tp() -> None:
    # 4 kv heads on tp = 8: 4 different heads, 2 copies
    assert kv_split(8, 4) == 4
    mesh = stage_mesh(dp=1, tp=8, ep=2, kv=4)
    assert (mesh.size("tp_kv"), mesh.size("tp_rep"), mesh.size("ep"), mesh.size("etp")) == (4, 2, 2, 4)


@pytest.mark.parametrize(
    ("dp", "tp", "ep", "kv"), [(1, 1, 1, 1), (2, 2, 2, 2), (3, 4, 12, 4), (6, 2, 3, 1), (2, 8, 4, 4)]
)
def test_every_direction_has_its_size(dp: int, tp: int, ep: int, kv: int) -> None:
    mesh = stage_mesh(dp=dp, tp=tp, ep=ep, kv=kv)
    product = 1
    for _, size in mesh.dims:
        product *= size
    assert product == dp * tp
    assert (
        mesh.size("dp") == dp and mesh.size("tp") == tp and mesh.size("ep") == ep and mesh.size("etp") == dp * tp // ep
    )
    assert mesh.size("tp_kv") == kv and mesh.size("tp_rep") == tp // kv
    assert mesh.size("tp_ep") * mesh.size("dp_ep") == ep
    for axis in ("dp", "tp", "ep", "etp"):
        assert mesh.view(axis), f"{axis} has no dim"


def test_boundaries_that_do_not_nest_are_named() -> None:
    with pytest.raises(InvalidInputError, match="do not nest"):
        stage_mesh(dp=2, tp=6, ep=6, kv=2)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"dp": 2, "tp": 2, "ep": 2, "etp": 1, "batch": 2}, "must equal"),
        ({"dp": 4, "tp": 3, "ep": 6, "etp": 2, "batch": 4}, "divide the other"),
        ({"dp": 2, "tp": 1, "ep": 2, "etp": 1, "batch": 3}, "multiple of dp"),
        ({"tp": 0}, "at least 1"),
    ],
)
def test_bad_degrees_say_why(bad: dict[str, int], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        Degrees(**bad)


def test_microbatches_fill_the_pipeline_when_the_batch_allows() -> None:
    d = Degrees(pp=4, dp=2, tp=1, ep=2, batch=48)
    assert (d.num_microbatches, d.sequences) == (4, 6)
    assert Degrees(pp=4, dp=2, tp=1, ep=2, batch=4).num_microbatches == 2
