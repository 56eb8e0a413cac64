"""Quantised tensors of a checkpoint: a rank reads the blocks of its shard with their scales, and dequantises them.

Two formats, as published checkpoints have them. What a rank gets is, bit for bit, its part of the whole tensor
dequantised, wherever it is cut: every element is its own number times the scale of its block.

*fp8 blocks* (DeepSeek-V3, Qwen3 FP8): ``NAME`` in e4m3 of (..., out, in) and ``NAME_scale_inv``, a scale for every
(begun) block of ``weight_block_size`` elements: ``w[r, c] * scale[r // m, c // n]``, in float32.

*mxfp4* (gpt-oss): ``NAME_blocks`` of (experts, out, groups, 16) bytes and ``NAME_scales`` of (experts, out, groups):
two e2m1 numbers a byte, the even column in the low bits, each times ``2 ** (scale - 127)``; groups of 32 run along the
contracted dim [OCP Microscaling Formats 1.0, section 5.1]. The parameter is (experts, in, out): transposed.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from autoshard.emit.checkpoint.files import Reader, StoredTensor
from autoshard.emit.checkpoint.regions import Overlap
from autoshard.errors import InvalidInputError
from autoshard.tracing.quantised import quantised_blocks

GROUP = 32
"""Elements that share a scale in mxfp4."""

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
"""What the 16 codes of a 4-bit float mean (a sign, two bits of exponent, one of mantissa)."""

_BIAS = 127
_FP8, _BLOCKS, _SCALES = "_scale_inv", "_blocks", "_scales"


@dataclass(frozen=True, slots=True)
class QuantisedTensor(StoredTensor):
    """A tensor that is stored quantised, under the shape and in the orientation it has dequantised.

    Its ``dtype`` is that of the arithmetic; it goes into a parameter of any floating dtype.
    """

    scales: StoredTensor
    codes: StoredTensor
    block: tuple[int, int]
    form: Literal["fp8", "mxfp4"]


def with_quantised(stored: Mapping[str, StoredTensor], folder: Path) -> dict[str, StoredTensor]:
    """The tensors of a checkpoint, each quantised one (two in the files) as one under the parameter's name.

    Raises:
        InvalidInputError: for scales that do not fit their tensor.
    """
    found = dict(stored)
    block = _configured_block(folder)
    for name in stored:
        weight = name.removesuffix(_FP8)
        if weight != name and weight in stored:
            found[weight] = _fp8(stored[weight], stored[name], block)
            del found[name]
        weight = name.removesuffix(_BLOCKS)
        if weight != name and weight + _SCALES in stored:
            found[weight] = _mxfp4(stored[name], stored[weight + _SCALES], weight)
            del found[name], found[weight + _SCALES]
    return found


def _configured_block(folder: Path) -> tuple[int, int]:
    """(out, in) elements of a block by the checkpoint's own config; (1, 1) if it does not say."""
    path = (folder if folder.is_dir() else folder.parent) / "config.json"
    try:
        config = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return 1, 1
    return quantised_blocks(config) if isinstance(config, dict) else (1, 1)


def _fp8(codes: StoredTensor, scales: StoredTensor, block: tuple[int, int]) -> StoredTensor:
    if len(codes.shape) < 2 or codes.dtype is not torch.float8_e4m3fn:
        raise InvalidInputError(f"{codes.path}: {codes.name} {codes.shape} has scales but is no matrix in float8_e4m3")
    if block == (1, 1):  # nothing says how large blocks are, but where they are as large as can be they say it
        block = tuple(-(-n // s) for n, s in zip(codes.shape[-2:], scales.shape[-2:], strict=False))  # type: ignore[assignment]
    blocks = tuple(-(-n // b) for n, b in zip(codes.shape[-2:], block, strict=True))
    if scales.shape != (*codes.shape[:-2], *blocks):
        raise InvalidInputError(
            f"{scales.path}: {scales.name} is {scales.shape}; blocks of {block} of {codes.shape} need"
            f" {(*codes.shape[:-2], *blocks)}"
        )
    return QuantisedTensor(
        codes.path, codes.name, torch.float32, codes.shape, codes.offset, scales, codes, block, "fp8"
    )


def _mxfp4(codes: StoredTensor, scales: StoredTensor, name: str) -> StoredTensor:
    if len(codes.shape) != 4 or codes.shape[3] * 2 != GROUP or scales.shape != codes.shape[:3]:
        raise InvalidInputError(
            f"{codes.path}: {codes.name} {codes.shape} with scales {scales.shape} is not (experts, out, groups, 16)"
        )
    experts, rows, groups, _ = codes.shape
    shape = (experts, groups * GROUP, rows)
    return QuantisedTensor(codes.path, name, torch.float32, shape, codes.offset, scales, codes, (1, GROUP), "mxfp4")


def read_stored(reader: Reader, stored: StoredTensor, box: Overlap, target: Tensor) -> None:
    """Copy a box of a stored tensor to its place in ``target``, dequantised if it is stored quantised."""
    if not isinstance(stored, QuantisedTensor):
        reader.read(stored, box, target)
        return
    values = _fp8_box(reader, stored, box) if stored.form == "fp8" else _mxfp4_box(reader, stored, box)
    for dim, (start, length) in enumerate(zip(box.target, box.shape, strict=True)):
        target = target.narrow(dim, start, length)
    target.copy_(values)


def _take(reader: Reader, stored: StoredTensor, start: tuple[int, ...], shape: tuple[int, ...]) -> Tensor:
    """A box of a stored tensor as it is stored."""
    assert isinstance(stored.dtype, torch.dtype)
    found = torch.empty(shape, dtype=stored.dtype)
    reader.read(stored, Overlap(start, (0,) * len(shape), shape), found)
    return found


def _fp8_box(reader: Reader, stored: QuantisedTensor, box: Overlap) -> Tensor:
    codes = _take(reader, stored.codes, box.source, box.shape)
    first = (*box.source[:-2], *(s // b for s, b in zip(box.source[-2:], stored.block, strict=True)))
    last = [(s + n - 1) // b + 1 for s, n, b in zip(box.source[-2:], box.shape[-2:], stored.block, strict=True)]
    scales = _take(
        reader, stored.scales, first, (*box.shape[:-2], *(b - a for a, b in zip(first[-2:], last, strict=True)))
    )
    for dim in (-2, -1):
        at = torch.arange(box.source[dim], box.source[dim] + box.shape[dim]) // stored.block[dim] - first[dim]
        scales = scales.index_select(dim, at)
    return codes.to(torch.float32) * scales.to(torch.float32)


def _mxfp4_box(reader: Reader, stored: QuantisedTensor, box: Overlap) -> Tensor:
    expert, column, row = box.source
    experts, columns, rows = box.shape
    first, last = column // GROUP, (column + columns - 1) // GROUP + 1
    start, shape = (expert, row, first), (experts, rows, last - first)
    codes = _take(reader, stored.codes, (*start, 0), (*shape, GROUP // 2))
    scales = _take(reader, stored.scales, start, shape)
    values = torch.tensor(E2M1)[torch.stack((codes & 15, codes >> 4), -1).long()].flatten(-2)
    whole = torch.ldexp(values, scales.to(torch.int32)[..., None] - _BIAS).flatten(-2)
    return whole.narrow(2, column - first * GROUP, columns).transpose(1, 2)
