"""A feature dim made of unequal parts side by side (q|k|v with fewer kv heads), and the order in which ranks have it.

By part: ``part 0 of all ranks | part 1 of all ranks | ...``, as the module has it. By rank: ``all parts of rank 0 | all
parts of rank 1 | ...``, as a gather delivers and a scatter takes it. Every rank has the same share of every part.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def by_rank(x: Tensor, dim: int, parts: Sequence[int], num_ranks: int) -> Tensor:
    """The dim ``dim`` of ``x``, of ``parts`` side by side, reordered by rank."""
    dim %= x.ndim
    pieces = [torch.unflatten(p, dim, (num_ranks, -1)) for p in torch.split(x, list(parts), dim)]
    return torch.cat(pieces, dim + 1).flatten(dim, dim + 1)


def by_part(x: Tensor, dim: int, parts: Sequence[int], num_ranks: int) -> Tensor:
    """The inverse of `by_rank`."""
    dim %= x.ndim
    ranks = torch.unflatten(x, dim, (num_ranks, -1))
    pieces = torch.split(ranks, [p // num_ranks for p in parts], dim + 1)
    return torch.cat([p.flatten(dim, dim + 1) for p in pieces], dim)


def shares(parts: Sequence[int], rank: int, num_ranks: int) -> list[tuple[int, int]]:
    """(start, length) of a rank's share of every part."""
    found, start = [], 0
    for part in parts:
        found.append((start + rank * (part // num_ranks), part // num_ranks))
        start += part
    return found


def own_rows(x: Tensor, dim: int, parts: Sequence[int], rank: int, num_ranks: int) -> Tensor:
    """A rank's share of every part of ``dim``, side by side."""
    if num_ranks == 1:
        return x
    return torch.cat([x.narrow(dim, start, length) for start, length in shares(parts, rank, num_ranks)], dim)
