"""Files of tensors (`*.safetensors`) read by rows and written tensor by tensor, so that no more than one piece is ever in memory.

The safetensors library maps whole files into memory, whose pages count as ours, and writes only what is in memory all at once. The format is small: 8 bytes
with the length of the header (unsigned, little-endian), the header in JSON (`{"name": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]}}`,
places counted from the header's end), then the tensors' bytes, row-major and little-endian, without gaps
(https://github.com/huggingface/safetensors, "Format").

    stored = read_header(path)["model.norm.weight"]
    read_rows(stored, 0, 16)
    writer = TensorWriter(path, [entry("model.norm.weight", torch.bfloat16, (32,))])
    writer.add("model.norm.weight", tensor)
    writer.finish()
"""

from __future__ import annotations

import io
import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from packer.errors import UserError

DTYPES: dict[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_CODES = {dtype: code for code, dtype in DTYPES.items()}
_LARGEST_HEADER = 100_000_000  # as the library has it
_PIECE = 1 << 26  # bytes copied at a time


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """A tensor of a file: code is its dtype as the format writes it, which may be one that we only copy (F8_E4M3)."""

    name: str
    code: str
    shape: tuple[int, ...]
    nbytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Stored(Entry):
    """One that lies in a file, from byte `offset` on."""

    path: Path
    offset: int

    @property
    def dtype(self) -> torch.dtype | None:
        """None where it is not a kind of number that this module reads."""
        return DTYPES.get(self.code)


def entry(name: str, dtype: torch.dtype, shape: Sequence[int]) -> Entry:
    """A tensor to be written."""
    return Entry(name=name, code=_CODES[dtype], shape=tuple(shape), nbytes=math.prod(shape) * dtype.itemsize)


def read_header(path: Path) -> dict[str, Stored]:
    """The tensors of a file by name, in the order of their bytes; raises UserError where the file is not whole."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > min(size - 8, _LARGEST_HEADER):
                raise _unreadable(path, "its header is cut short, or it is no safetensors file")
            document = json.loads(file.read(length))
        if not isinstance(document, dict):
            raise _unreadable(path, "its header is not a JSON object")
        found = [_stored(path, name, said, 8 + length) for name, said in document.items() if name != "__metadata__"]
    except OSError as error:
        raise _unreadable(path, error.strerror or str(error)) from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _unreadable(path, f"its header is damaged ({type(error).__name__})") from None
    found.sort(key=lambda stored: stored.offset)
    end = 8 + length
    for stored in found:
        expected = None if stored.dtype is None else math.prod(stored.shape) * stored.dtype.itemsize
        if stored.offset != end or stored.nbytes < 0 or expected not in (None, stored.nbytes):
            raise _unreadable(path, f"the place of {stored.name} in it is damaged")
        end += stored.nbytes
    if end != size:
        raise _unreadable(path, f"it has {size:,} bytes and its header speaks of {end:,}")
    return {stored.name: stored for stored in found}


def _stored(path: Path, name: str, said: dict[str, object], begin: int) -> Stored:
    shape, place = said["shape"], said["data_offsets"]
    if not isinstance(shape, list) or not isinstance(place, list):
        raise ValueError(name)
    if len(place) != 2 or any(type(number) is not int or number < 0 for number in [*shape, *place]):
        raise ValueError(name)
    first, last = place
    return Stored(
        name=name, code=str(said["dtype"]), shape=tuple(shape), path=path, offset=begin + first, nbytes=last - first
    )


def _unreadable(path: Path, why: str) -> UserError:
    return UserError(
        f"the weights of {path} cannot be read: {why}",
        "fetch or copy the file again, or start from random weights with --init random",
    )


def read_rows(stored: Stored, start: int, stop: int) -> Tensor:
    """Rows start to stop (of the first dimension; a scalar has one) as they are stored, on the CPU."""
    assert stored.dtype is not None, stored.code
    row = stored.nbytes // max(stored.shape[0], 1) if stored.shape else stored.nbytes
    shape = (stop - start, *stored.shape[1:]) if stored.shape else ()
    tensor = torch.empty(shape, dtype=stored.dtype)
    _read_into(stored, start * row, _bytes(tensor))
    return tensor


def read_whole(stored: Stored) -> Tensor:
    """All of it."""
    return read_rows(stored, 0, stored.shape[0] if stored.shape else 1)


def _bytes(tensor: Tensor) -> memoryview:
    """The memory of a contiguous CPU tensor."""
    return memoryview(tensor.reshape(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]  # an array is a buffer


def _read_into(stored: Stored, at: int, view: memoryview) -> None:
    try:
        with stored.path.open("rb", buffering=0) as file:
            file.seek(stored.offset + at)
            while len(view):
                got = file.readinto(view[:_PIECE])
                if not got:
                    raise _unreadable(stored.path, f"it ends in the midst of {stored.name}")
                view = view[got:]
    except OSError as error:
        raise _unreadable(stored.path, error.strerror or str(error)) from None


class TensorWriter:
    """Writes one file: the entries are named first, then their tensors given in any order. Whole and durable once closed without an error."""

    def __init__(self, path: Path, entries: Sequence[Entry]) -> None:
        header: dict[str, object] = {"__metadata__": {"format": "pt"}}
        at = 0
        for each in entries:
            header[each.name] = {"dtype": each.code, "shape": each.shape, "data_offsets": [at, at + each.nbytes]}
            at += each.nbytes
        text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)  # the tensors begin at a multiple of 8
        self._left = {each.name: each for each in entries}
        self._places: dict[str, int] = {}
        begin = 8 + len(text)
        for each in entries:
            self._places[each.name] = begin
            begin += each.nbytes
        self._file: io.FileIO = path.open("wb", buffering=0)
        self._write(0, memoryview(len(text).to_bytes(8, "little") + text))

    def add(self, name: str, tensor: Tensor) -> None:
        """Writes a tensor, cast to its entry's dtype a piece at a time; its shape must be the entry's."""
        each, at = self._left.pop(name), self._places[name]
        assert tuple(tensor.shape) == each.shape, f"{name} is {tuple(tensor.shape)}"
        flat, dtype = tensor.reshape(-1), DTYPES[each.code]
        step = _PIECE // 8
        for start in range(0, flat.numel(), step):
            at = self._write(at, _bytes(flat[start : start + step].to("cpu", dtype).contiguous()))

    def copy(self, stored: Stored) -> None:
        """Writes a tensor of another file, byte for byte."""
        each, at = self._left.pop(stored.name), self._places[stored.name]
        assert (each.code, each.shape, each.nbytes) == (stored.code, stored.shape, stored.nbytes), each.name
        for start in range(0, stored.nbytes, _PIECE):
            piece = memoryview(bytearray(min(_PIECE, stored.nbytes - start)))
            _read_into(stored, start, piece)
            at = self._write(at, piece)

    def finish(self) -> None:
        """Makes the file durable; every tensor must have been given."""
        assert not self._left, f"{min(self._left)} was not written"
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Lets go of the file, whole or not."""
        self._file.close()

    def _write(self, at: int, view: memoryview) -> int:
        while len(view):
            written = os.pwrite(self._file.fileno(), view, at)
            at, view = at + written, view[written:]
        return at
