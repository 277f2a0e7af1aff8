"""Compressed files read to their last byte: what cannot be decompressed is an error, wherever it stands.

fsspec's readers end without one where a zstandard file is cut and after its first frame, and where a second stream of bzip2 or xz is damaged (what
parallel compressors write has many), as they take that for bytes behind the file.

    for line in decompressed("chats.jsonl.xz", file): ...
"""

from __future__ import annotations

import bz2
import io
import lzma
from collections.abc import Iterator
from typing import BinaryIO

import pyarrow as pa

_DECOMPRESSORS: dict[str, type[bz2.BZ2Decompressor | lzma.LZMADecompressor]] = {
    ".bz2": bz2.BZ2Decompressor,
    ".xz": lzma.LZMADecompressor,
}
_ZSTANDARD = ".zst"
STRICT = (*_DECOMPRESSORS, _ZSTANDARD)
_BLOCK_BYTES = 1 << 16


def decompressed(path: str, file: BinaryIO) -> BinaryIO:
    """Return the text of a compressed file that has one of the suffixes in `STRICT`; it cannot be sought in."""
    suffix = path.lower()[path.rindex(".") :]
    if suffix == _ZSTANDARD:
        return io.BufferedReader(pa.CompressedInputStream(pa.PythonFile(file, mode="r"), "zstd"))
    return io.BufferedReader(_Reader(_blocks(file, suffix)), _BLOCK_BYTES)


class _Reader(io.RawIOBase):
    """Blocks of text as a file."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks = blocks
        self._rest = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # any buffer, as io passes
        text = self._rest or next((block for block in self._blocks if block), b"")
        size = min(len(text), len(buffer))
        buffer[:size], self._rest = text[:size], text[size:]
        return size


def _blocks(file: BinaryIO, suffix: str) -> Iterator[bytes]:
    """Yield the text of streams behind each other, between which zeros may stand."""
    left = b""
    while True:
        while not (left := left.lstrip(b"\0")):
            if not (left := file.read(_BLOCK_BYTES)):
                return
        stream = _DECOMPRESSORS[suffix]()
        while not stream.eof:
            if not left and stream.needs_input and not (left := file.read(_BLOCK_BYTES)):
                raise EOFError("Compressed file ended before the end-of-stream marker was reached")
            yield stream.decompress(left, _BLOCK_BYTES)
            left = b""
        left = stream.unused_data
