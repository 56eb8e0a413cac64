"""Safetensors files: their headers checked in full before a byte of data is read, their tensors read by boxes.

The format is eight bytes of header length (little endian), a JSON header of ``{name: {dtype, shape, data_offsets}}``,
and the data [https://github.com/huggingface/safetensors, README "Format"]. Files are read, not mapped: the pages of a
mapping count as the process's memory until it is closed, and a shard must be all that a rank holds.
"""

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from autoshard.emit.checkpoint.regions import Overlap
from autoshard.errors import InvalidInputError
from autoshard.units import MIB

BUFFER_BYTES = 16 * MIB
"""Most bytes that lie between file and shard, unless one row of a tensor's last dim is longer."""

MOST_HEADER_BYTES = 100_000_000
"""The format's own limit on a header."""

DTYPES: Mapping[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
"""Dtypes of the format; a tensor of another one is refused when it is needed."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor in a file: its dtype and shape, and where its first byte is."""

    path: Path
    name: str
    dtype: torch.dtype | str
    shape: tuple[int, ...]
    offset: int


def read_header(path: Path) -> dict[str, StoredTensor]:
    """Tensors of one file by name.

    Raises:
        InvalidInputError: not a safetensors file, truncated, or with offsets that do not fit its shapes or its length.
    """
    try:
        size = path.stat().st_size
        with open(path, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > min(size - 8, MOST_HEADER_BYTES):
                raise InvalidInputError(f"{path} is no safetensors file or is truncated: {size} bytes")
            header = json.loads(file.read(length), object_pairs_hook=_unique)
    except OSError as error:
        raise InvalidInputError(f"cannot read {path}: {error.strerror}") from None
    except InvalidInputError:
        raise
    except (ValueError, RecursionError) as error:
        twice = f" or names a tensor twice ({error})" if isinstance(error, _Twice) else ""
        raise InvalidInputError(f"{path} is no safetensors file: its header is not JSON{twice}") from None
    found = {}
    try:
        for name, entry in header.items():
            if name != "__metadata__":
                found[str(name)] = _stored(path, str(name), entry, 8 + length)
    except InvalidInputError:
        raise
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise InvalidInputError(f"{path} is no safetensors file: its header is malformed ({error!r})") from None
    end = 8 + length
    for tensor, stop in sorted(found.values(), key=lambda pair: pair[0].offset):
        if tensor.offset < end and stop > tensor.offset:
            raise InvalidInputError(f"{path}: {tensor.name} overlaps another tensor")
        end = max(end, stop)
    if end > size:
        raise InvalidInputError(f"{path} is truncated: {size} bytes, its tensors end at {end}")
    return {name: tensor for name, (tensor, _) in found.items()}


class _Twice(ValueError):
    """A name that a JSON object has twice."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object, unless it has a name twice."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise _Twice(name)
        found[name] = value
    return found


def _stored(path: Path, name: str, entry: Mapping[str, Any], start_of_data: int) -> tuple[StoredTensor, int]:
    """A tensor of a header, its bytes what its shape and dtype need, and where it ends in the file."""
    shape = tuple(_whole(n) for n in entry["shape"])
    start, stop = (_whole(n) for n in entry["data_offsets"])
    dtype = DTYPES.get(entry["dtype"], str(entry["dtype"]))
    needed = math.prod(shape) * dtype.itemsize if isinstance(dtype, torch.dtype) else stop - start
    if stop < start or stop - start != needed:
        raise InvalidInputError(f"{path}: {name} {shape} has {stop - start} bytes, needs {needed}")
    return StoredTensor(path, name, dtype, shape, start_of_data + start), start_of_data + stop


def _whole(n: Any) -> int:
    if type(n) is not int or n < 0:
        raise ValueError(f"{n!r} is no size")
    return n


def read_folder(folder: Path) -> dict[str, StoredTensor]:
    """Tensors of a checkpoint folder: those of ``model.safetensors.index.json``, else of its one file.

    Raises:
        InvalidInputError: no safetensors there, an index that does not match its files, or a broken file.
    """
    if folder.is_file():
        return read_header(folder)
    index = folder / "model.safetensors.index.json"
    if not folder.exists():
        raise InvalidInputError(f"no such file or folder: {folder}")
    if not index.is_file():
        files = sorted(folder.glob("*.safetensors")) if folder.is_dir() else []
        if len(files) != 1:
            pickled = any(folder.glob("*.bin")) or any(folder.glob("*.pt")) if folder.is_dir() else False
            more = "; pickled weights are never loaded, convert them to safetensors" if pickled else ""
            raise InvalidInputError(
                f"{folder} has {len(files)} safetensors files and no model.safetensors.index.json{more}"
            )
        return read_header(files[0])
    try:
        listed = json.loads(index.read_text("utf-8"), object_pairs_hook=_unique)["weight_map"]
        names = {str(k): str(v) for k, v in listed.items()}
    except OSError as error:
        raise InvalidInputError(f"cannot read {index}: {error.strerror}") from None
    except _Twice as error:
        raise InvalidInputError(f"{index} names {error} twice") from None
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        raise InvalidInputError(f"{index} is no index of a safetensors checkpoint") from None
    if odd := next((f for f in names.values() if Path(f).name != f or f in ("", "..")), None):
        raise InvalidInputError(f"{index} names a file outside its folder: {odd!r}")
    headers = {file: read_header(folder / file) for file in sorted(set(names.values()))}
    missing = next((n for n, file in names.items() if n not in headers[file]), None)
    if missing is not None:
        raise InvalidInputError(f"{folder / names[missing]} has no tensor {missing}, which the index says it has")
    return {name: headers[file][name] for name, file in names.items()}


class Reader:
    """Reads boxes of stored tensors into tensors; counts the bytes it reads. Use it as a context."""

    def __init__(self) -> None:
        self.num_bytes = 0
        self._path: Path | None = None
        self._file = -1
        self._buffer = torch.empty(0, dtype=torch.uint8)

    def __enter__(self) -> "Reader":
        return self

    def __exit__(self, *_: object) -> None:
        if self._file >= 0:
            os.close(self._file)
        self._file, self._path = -1, None

    def read(self, stored: StoredTensor, box: Overlap, target: Tensor) -> None:
        """Copy the box of ``stored`` to its place in ``target`` (converted, if of another dtype)."""
        if self._path != stored.path:
            self.__exit__()
            try:
                self._file, self._path = os.open(stored.path, os.O_RDONLY), stored.path
            except OSError as error:
                raise InvalidInputError(f"cannot read {stored.path}: {error.strerror}") from None
        place = target
        for dim, (start, length) in enumerate(zip(box.target, box.shape, strict=True)):
            place = place.narrow(dim, start, length)
        assert isinstance(stored.dtype, torch.dtype)
        self._box(stored.offset, stored.shape, box.source, box.shape, stored.dtype, place)

    def _box(
        self,
        offset: int,
        whole: tuple[int, ...],
        start: tuple[int, ...],
        shape: tuple[int, ...],
        dtype: torch.dtype,
        place: Tensor,
    ) -> None:
        """Read ``shape`` at ``start`` of a row-major tensor ``whole`` at byte ``offset``."""
        if not whole:
            whole, start, shape, place = (1,), (0,), (1,), place.reshape(1)
        row = math.prod(whole[1:]) * dtype.itemsize
        offset += start[0] * row
        full_rows = whole[1:] == shape[1:]
        if full_rows and place.dtype is dtype and place.is_contiguous() and place.device.type == "cpu":
            self._bytes(offset, place)
            return
        if row > BUFFER_BYTES and len(whole) > 1:
            for i in range(shape[0]):
                self._box(offset + i * row, whole[1:], start[1:], shape[1:], dtype, place[i])
            return
        rows = max(1, BUFFER_BYTES // max(row, 1))
        for first in range(0, shape[0], rows):
            count = min(rows, shape[0] - first)
            buffer = self._memory(count * row).view(dtype).view(count, *whole[1:])
            self._bytes(offset + first * row, buffer)
            for dim in range(1, len(whole)):
                buffer = buffer.narrow(dim, start[dim], shape[dim])
            place.narrow(0, first, count).copy_(buffer)

    def _memory(self, num_bytes: int) -> Tensor:
        """The one buffer of this reader: many short-lived ones would leave holes in the process's heap."""
        if len(self._buffer) < num_bytes:
            self._buffer = torch.empty(max(num_bytes, BUFFER_BYTES), dtype=torch.uint8)
        return self._buffer[:num_bytes]

    def _bytes(self, offset: int, target: Tensor) -> None:
        """Fill a contiguous CPU tensor from the open file."""
        if target.numel() == 0:
            return
        memory = memoryview(target.reshape(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]
        done = 0
        while done < len(memory):
            try:
                got = os.preadv(self._file, [memory[done : done + 2**30]], offset + done)
            except OSError as error:
                raise InvalidInputError(f"cannot read {self._path}: {error.strerror}") from None
            if got == 0:
                raise InvalidInputError(f"{self._path} ended while it was read: it has been truncated")
            done += got
        self.num_bytes += done
