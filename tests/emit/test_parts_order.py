"""Unequal parts of a feature dim: by part and by rank, worked out by hand."""

import torch
from torch import nn

from autoshard.emit.linear import _on_rows
from autoshard.emit.parts import by_part, by_rank, own_rows, shares

# q of 4, k of 2, v of 2, on two ranks: rank 0 has q 0 1, k 4, v 6; rank 1 has q 2 3, k 5, v 7
PARTS = (4, 2, 2)


def test_order_by_rank_and_back() -> None:
    x = torch.arange(8)[None]
    ranked = by_rank(x, -1, PARTS, 2)
    assert ranked.tolist() == [[0, 1, 4, 6, 2, 3, 5, 7]]
    assert torch.equal(by_part(ranked, -1, PARTS, 2), x)
    assert own_rows(x[0], 0, PARTS, 1, 2).tolist() == [2, 3, 5, 7]
    assert shares(PARTS, 1, 2) == [(2, 2), (5, 1), (7, 1)]
    # the documented silent mistake: a plain shard gives rank 1 all keys and values and no query
    assert x[0].chunk(2)[1].tolist() == [4, 5, 6, 7]


def test_a_linear_on_its_rows_is_the_rows_of_the_linear() -> None:
    module, x = nn.Linear(3, 8), torch.randn(5, 3)
    whole = module(x)
    got = _on_rows(module, shares(PARTS, 0, 2), module.forward, (x,), {})
    assert torch.allclose(got, whole[:, [0, 1, 4, 6]]) and torch.equal(module(x), whole)
