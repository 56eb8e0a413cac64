"""Steps on tensors, with the network replaced by plain copies: shapes, part order and packed parts."""

import pytest
import torch
from torch import Tensor

from autoshard.emit import steps
from autoshard.emit.axes import MeshAxis, local_part
from autoshard.sharding import Step

RANKS = 3


def axis(coordinate: int) -> MeshAxis:
    return MeshAxis(size=RANKS, coordinate=coordinate, group=None)


def test_packed_part_has_the_same_columns_of_every_part() -> None:
    # gate columns 0..5, up columns 6..11; rank 1 of 3 holds 2, 3 of gate and 8, 9 of up
    whole = torch.arange(12)[None]
    assert local_part(whole, 1, axis(1), packed=2).tolist() == [[2, 3, 8, 9]]
    # the documented silent mistake: a plain shard gives it 4..7, the end of gate and the start of up
    assert local_part(whole, 1, axis(1)).tolist() == [[4, 5, 6, 7]]


@pytest.mark.parametrize("packed", [1, 2])
@pytest.mark.parametrize("shape,dim", [((4, 12), -1), ((2, 5, 12), -1), ((12, 4), 0), ((12,), 0)])
def test_all_gather_undoes_the_cut(
    shape: tuple[int, ...], dim: int, packed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = torch.randn(shape)
    parts = [local_part(whole, dim, axis(i), packed).contiguous() for i in range(RANKS)]

    def network(out: Tensor, mine: Tensor, group: object) -> None:
        assert torch.equal(mine, parts[1]) and group is None
        out.copy_(torch.cat(parts))

    monkeypatch.setattr(steps, "all_gather_single", network)
    assert torch.equal(steps.all_gather(parts[1], dim, axis(1), packed), whole)


@pytest.mark.parametrize("packed", [1, 2])
@pytest.mark.parametrize("shape,dim", [((4, 12), -1), ((2, 5, 12), -1), ((12, 4), 0)])
def test_reduce_scatter_is_sum_then_cut(
    shape: tuple[int, ...], dim: int, packed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    partial = torch.randn(shape)

    def network(out: Tensor, everything: Tensor, **_: object) -> None:
        # every rank has the same partial sum: the sum is three times it
        out.copy_(RANKS * everything.view(RANKS, *out.shape)[2])

    monkeypatch.setattr(steps, "reduce_scatter_single", network)
    got = steps.reduce_scatter(partial, dim, axis(2), packed)
    assert torch.equal(got, RANKS * local_part(partial, dim, axis(2), packed))


def test_all_reduce_leaves_its_input_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps.dist, "all_reduce", lambda x, **_: x.mul_(RANKS))
    x = torch.ones(2, 2)
    assert steps.all_reduce(x, axis(0)).tolist() == [[3.0, 3.0], [3.0, 3.0]]
    assert x.tolist() == [[1.0, 1.0], [1.0, 1.0]]


def test_steps_along_an_axis_of_one_do_nothing() -> None:
    alone = {"tp": MeshAxis(size=1, coordinate=0, group=None)}
    chain = (
        Step(kind="all_reduce", axis="tp", rows="local", width=4),
        Step(kind="slice", axis="tp", rows="local", width=4),
    )
    x = torch.randn(2, 4)
    assert steps.run_steps(x, chain, alone) is x  # type: ignore[arg-type]


def test_token_slice_takes_rows() -> None:
    step = Step(kind="slice", axis="dp_etp", rows="group", width=2, dim="token")
    rows = torch.arange(12).view(6, 2)
    got = steps.run_steps(rows, (step,), {"dp_etp": axis(1)})  # type: ignore[arg-type]
    assert got.tolist() == [[4, 5], [6, 7]]


def test_an_uneven_cut_is_refused() -> None:
    with pytest.raises(AssertionError):
        local_part(torch.zeros(4), 0, axis(0))
