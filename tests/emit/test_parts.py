"""Pieces of emission without any rank: routing, packing bytes, norms, reshapes."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from autoshard.emit import dispatch
from autoshard.emit.axes import MeshAxis
from autoshard.emit.dispatch import RoutedTokens, gather_tokens, identify
from autoshard.emit.experts import sort_pairs
from autoshard.emit.grouped import grouped_linear
from autoshard.emit.local import LocalWidth, map_first_tensor
from autoshard.emit.norm import SplitRows
from autoshard.sharding import Step


def test_pairs_of_other_ranks_experts_come_last() -> None:
    # experts 2 and 3 are ours; pairs in order: 3 0 | 2 1 | 3 2
    pairs = sort_pairs(torch.tensor([[3, 0], [2, 1], [3, 2]]), first=2, num_local=2)
    assert pairs.order.tolist() == [2, 5, 0, 4, 1, 3]  # both 2s, both 3s, the others
    assert pairs.counts.tolist() == [2, 2]
    assert pairs.own.tolist() == [True] * 4 + [False] * 2
    assert pairs.expert.tolist() == [0, 0, 1, 1, 1, 1]


def test_grouped_linear_is_one_product_per_expert() -> None:
    rows, weight = torch.randn(5, 3, dtype=torch.float64), torch.randn(2, 3, 4, dtype=torch.float64)
    out = grouped_linear(rows, weight, torch.tensor([3, 1]))
    assert torch.allclose(out[:3], rows[:3] @ weight[0]) and torch.allclose(out[3:4], rows[3:4] @ weight[1])


@pytest.mark.parametrize(
    "dtype,weights_dtype", [("float32", "float32"), ("bfloat16", "float32"), ("float64", "float64")]
)
def test_a_dispatched_row_has_the_bytes_the_plan_counts(
    dtype: str, weights_dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden, top_k, num_ranks = 8, 2, 2
    activation = getattr(torch, dtype)
    tokens = RoutedTokens(
        hidden=torch.randn(3, hidden).to(activation),
        experts=torch.tensor([[0, 5], [1, 2], [7, 3]]),
        weights=torch.rand(3, top_k).to(getattr(torch, weights_dtype)),
    )
    sent = []

    def network(x: torch.Tensor, _: int, axis: MeshAxis) -> torch.Tensor:
        sent.append(x)
        return torch.cat([x] * axis.size)

    monkeypatch.setattr(dispatch, "all_gather", network)
    got = gather_tokens(tokens, MeshAxis(size=num_ranks, coordinate=0, group=None))
    step = Step(kind="all_gather", axis="dp", rows="group", width=hidden, dim="token", statistics=top_k, indices=top_k)
    assert sent[0].dtype is torch.uint8
    assert sent[0].shape[1] == step.row_bytes(tokens.hidden.element_size())
    for a, b in ((got.hidden, tokens.hidden), (got.experts, tokens.experts), (got.weights, tokens.weights)):
        assert a.dtype == b.dtype and torch.equal(a, torch.cat([b] * num_ranks))


def test_arguments_are_known_by_what_they_are() -> None:
    hidden, experts, weights = torch.randn(3, 8), torch.zeros(3, 2, dtype=torch.long), torch.rand(3, 2)
    for order in ((hidden, experts, weights), (weights, hidden, experts)):
        found = identify(order, top_k=2)
        assert found.hidden is hidden and found.experts is experts and found.weights is weights
    with pytest.raises(AssertionError):
        identify((hidden, weights), top_k=2)


@pytest.mark.parametrize("make", [lambda: nn.LayerNorm(12), lambda: nn.RMSNorm(12)])
def test_split_norm_statistics(make: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ranks' halves: the reduction is simulated by adding the other half's statistics."""
    norm = make().double()  # type: ignore[operator]
    x = torch.randn(5, 12, dtype=torch.float64)
    halves = x.chunk(2, dim=-1)
    step = Step(kind="all_reduce", axis="tp", rows="local", width=0, statistics=2)
    sums: list[torch.Tensor] = []
    monkeypatch.setattr(SplitRows, "over_ranks", lambda _, local: sums.append(local) or local)
    for half in halves:
        with SplitRows(step, {}):  # type: ignore[arg-type]
            if isinstance(norm, nn.LayerNorm):
                F.layer_norm(half, (6,), norm.weight[:6], norm.bias[:6], norm.eps)
            else:
                F.rms_norm(half, (6,), norm.weight[:6], norm.eps)
    whole = sum(sums) / 2  # type: ignore[arg-type]
    monkeypatch.setattr(SplitRows, "over_ranks", lambda *_: whole)
    with SplitRows(step, {}) as _:  # type: ignore[arg-type]
        if isinstance(norm, nn.LayerNorm):
            parts = [F.layer_norm(h, (6,), norm.weight[:6], norm.bias[:6], norm.eps) for h in halves]
        else:
            parts = [F.rms_norm(h, (6,), norm.weight[:6], norm.eps) for h in halves]
    assert torch.allclose(torch.cat(parts, dim=-1), norm(x), atol=1e-12, rtol=0)
    assert len(sums) == 2, "one reduction a norm, whatever the number of statistics"


def test_local_width_keeps_tokens_apart() -> None:
    shard = torch.randn(2, 3, 4)
    with LocalWidth(full=16, local=4):
        assert shard.reshape(-1, 16).shape == (6, 4)
        assert shard.view((2, 3, 16)).shape == (2, 3, 4)
        assert torch.reshape(shard, (-1, 16)).shape == (6, 4)
        assert shard.reshape(6, 2, 2).shape == (6, 2, 2)
        assert torch.zeros(2, 16).reshape(-1, 16).shape == (2, 16)


def test_first_tensor_by_position_or_name() -> None:
    x = torch.zeros(1)
    assert map_first_tensor((None, x), {}, lambda t: t + 1)[0][1].item() == 1.0
    assert map_first_tensor((), {"flag": True, "hidden_states": x}, lambda t: t + 1)[1]["hidden_states"].item() == 1.0
