"""Filling up a dim of a tensor for ranks that do not divide it, and cutting it to its width again."""

import torch
from torch import Tensor

from autoshard.sharding.padding import Grain, padded_runs, padded_width


def fill_up(x: Tensor, dim: int, ranks: int, packed: int, grain: Grain) -> Tensor:
    """``x`` with zeros in ``dim`` where `autoshard.sharding.padding` puts them; ``x`` itself where it divides."""
    width = x.shape[dim]
    if padded_width(width, ranks, packed=packed, grain=grain) == width:
        return x
    pieces = []
    for start, stop in padded_runs(width, ranks, packed=packed, grain=grain):
        shape = (*x.shape[: dim % x.ndim], stop - start, *x.shape[dim % x.ndim + 1 :])
        pieces.append(x.narrow(dim, start, stop - start) if stop <= width else x.new_zeros(shape))
    return torch.cat(pieces, dim)


def cut_off(x: Tensor, dim: int, width: int, ranks: int, packed: int, grain: Grain) -> Tensor:
    """The inverse of `fill_up`: the ``width`` elements that are no padding."""
    if x.shape[dim] == width:
        return x
    pieces, at = [], 0
    for start, stop in padded_runs(width, ranks, packed=packed, grain=grain):
        if stop <= width:
            pieces.append(x.narrow(dim, at, stop - start))
        at += stop - start
    assert at == x.shape[dim], f"{tuple(x.shape)} is not {width} filled up for {ranks} ranks"
    return torch.cat(pieces, dim)
