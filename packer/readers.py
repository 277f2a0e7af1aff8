"""Rows out of files: JSON lines, JSON, Parquet, Arrow, CSV, TSV and text, plain or compressed, on this machine or at any address that fsspec knows.

    for row in read_file("chats.jsonl.gz", columns={"messages"}): ...

A row that cannot be parsed is a row too: nothing is lost on the way to the ledger.
"""

from __future__ import annotations

import lzma
import zlib
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import BinaryIO

import fsspec
import pyarrow as pa
import xxhash

from packer.errors import UserError
from packer.network import first_line, unreachable
from packer.sources.arrow_rows import batch_rows
from packer.sources.compressed_files import STRICT, decompressed
from packer.sources.json_rows import json_rows, splits_inside
from packer.sources.raw_row import RawRow
from packer.sources.text_rows import line_rows, table_rows

SUFFIXES = (".jsonl", ".ndjson", ".json", ".parquet", ".arrow", ".csv", ".tsv")
# Read only where rows are texts (`--format text`): a folder of data often has a text that is none.
TEXT = ".txt"
_DELIMITERS = {".csv": ",", ".tsv": "\t"}
COMPRESSED = (".gz", ".bz2", ".xz", ".zst")
ROWS_AT_ONCE = 512
_BLOCK_BYTES = 1 << 20
_COPY_HINT = "check that it was copied whole"
_TRUNCATED = {"Truncated compressed stream": "Compressed file ended before the end-of-stream marker was reached"}


def kind_of(path: str, *, text: bool = False) -> str | None:
    """ ".jsonl" for "a/CHATS.JSONL.gz"; None for a file that is not read. text: whether plain text is."""
    name = PurePosixPath(path.lower())
    suffix = PurePosixPath(name.stem).suffix if name.suffix in COMPRESSED else name.suffix
    return suffix if suffix in SUFFIXES or (text and suffix == TEXT) else None


def is_compressed(path: str) -> bool:
    """Whether a file is decompressed as it is read."""
    return PurePosixPath(path.lower()).suffix in COMPRESSED


def size_of(path: str) -> int | None:
    """A file's bytes as its rows add up to them; None where they do not (it is compressed, or of a kind that does not say)."""
    if is_compressed(path) or kind_of(path) == ".arrow":
        return None
    return stored_size(path)


def stored_size(path: str) -> int | None:
    """A file's bytes as it lies there, compressed if it is; None where nobody says."""
    try:
        system, name = fsspec.url_to_fs(path)
        return int(system.size(name))
    except unreachable(ValueError, ImportError, TypeError):
        return None


def rows_of(path: str) -> int | None:
    """Rows of a file that says how many it has (Parquet); None where they would have to be counted."""
    if kind_of(path) != ".parquet" or is_compressed(path):
        return None
    import pyarrow.parquet as pq

    with open_binary(path) as file:
        try:
            return int(pq.ParquetFile(pa.PythonFile(file, mode="r")).metadata.num_rows)
        except pa.ArrowInvalid:
            return None


def base_name(path: str) -> str:
    """A file's own name, as UTF-8 can hold it."""
    return utf8(PurePosixPath(path.replace("\\", "/")).name)


def utf8(path: str) -> str:
    """A path as UTF-8 can hold it."""
    return path.encode("utf-8", "backslashreplace").decode()


@contextmanager
def open_binary(path: str) -> Iterator[BinaryIO]:
    """A file's bytes, decompressed by its suffix; raises UserError where it cannot be opened."""
    try:
        # Files by column are sought in, and end with a footer that tells whether they are whole.
        is_strict = path.lower().endswith(STRICT) and kind_of(path) not in (".parquet", ".arrow")
        with fsspec.open(path, "rb", compression=None if is_strict else "infer") as file:
            yield decompressed(path, file) if is_strict else file
    except unreachable(EOFError, lzma.LZMAError, zlib.error) as error:
        why = first_line(error)
        raise UserError(
            f"{path}: {_TRUNCATED.get(why, why)}", "check that the file is there, whole, and may be read"
        ) from None
    except (ValueError, ImportError) as error:
        # A compression or a protocol whose package is not installed.
        raise UserError(
            f"{path}: cannot be opened ({first_line(error)})",
            "install the package that it names, or unpack the file first",
        ) from None


def digest(path: str) -> str:
    """xxh3-128 of a file's bytes as they lie there (compressed, if they are)."""
    state = xxhash.xxh3_128()
    try:
        with fsspec.open(path, "rb") as file:
            while block := file.read(_BLOCK_BYTES):
                state.update(block)
    except unreachable() as error:
        raise UserError(f"{path}: {first_line(error)}", "check that the file is there and may be read") from None
    return state.hexdigest()


def read_file(path: str, columns: Collection[str], split: str = "") -> Iterator[RawRow]:
    """The rows of one file in order; raises UserError where the file as a whole cannot be read.

    columns: those that anything will be made of; a file that stores by column gives only these. split: which, where the file holds several.
    """
    name, kind = base_name(path), kind_of(path, text=True)
    with open_binary(path) as file:
        if kind == ".parquet":
            yield from _parquet(path, file, columns)
        elif kind == ".arrow":
            yield from _arrow(path, file, columns)
        elif kind in _DELIMITERS:
            yield from table_rows(path, name, file, delimiter=_DELIMITERS[kind])
        elif kind == TEXT:
            yield from line_rows(path, name, file)
        else:
            yield from json_rows(path, name, file, split=split, by_line=kind != ".json")


def splits_in_file(path: str) -> tuple[str, ...]:
    """The splits that one JSON document holds, {"train": […], "test": […]}; none where it holds no splits."""
    if kind_of(path) != ".json":
        return ()
    with open_binary(path) as file:
        return splits_inside(file)


def count_rows(path: str, split: str) -> int | None:
    """Rows of a file on this machine, which is read for it; of one elsewhere only where it says. None where that cannot be known."""
    if (rows := rows_of(path)) is not None or "://" in path:
        return rows
    try:
        return sum(1 for _ in read_file(path, (), split))
    except UserError:
        return None


def _parquet(path: str, file: BinaryIO, columns: Collection[str]) -> Iterator[RawRow]:
    import pyarrow.parquet as pq

    try:
        parquet = pq.ParquetFile(pa.PythonFile(file, mode="r"))
        names = _distinct(path, parquet.schema_arrow.names)
        wanted = [name for name in names if name in columns]
        share = (size_of(path) or 0) / max(parquet.metadata.num_rows, 1)
        batches = parquet.iter_batches(batch_size=ROWS_AT_ONCE, columns=wanted)
        yield from batch_rows(base_name(path), batches, names, share)
    except pa.ArrowInvalid as error:
        raise UserError(f"{path}: not a readable Parquet file ({first_line(error)})", _COPY_HINT) from None


def _arrow(path: str, file: BinaryIO, columns: Collection[str]) -> Iterator[RawRow]:
    source = pa.PythonFile(file, mode="r")
    try:
        try:
            reader = pa.ipc.open_file(source)
        except pa.ArrowInvalid:
            file.seek(0)
            reader = pa.ipc.open_stream(pa.PythonFile(file, mode="r"))
            batches = iter(reader)
        else:
            batches = (reader.get_batch(index) for index in range(reader.num_record_batches))
        names = _distinct(path, reader.schema.names)
        wanted = [name for name in names if name in columns]
        yield from batch_rows(
            base_name(path), (piece for batch in batches for piece in _pieces(batch.select(wanted))), names
        )
    except pa.ArrowInvalid as error:
        raise UserError(
            f"{path}: neither a whole Arrow file nor an Arrow stream ({first_line(error)})", _COPY_HINT
        ) from None


def _distinct(path: str, names: Sequence[str]) -> Sequence[str]:
    """The names of a file's columns; raises UserError where two are equal, of which a row could hold one only."""
    if (twice := next((name for place, name in enumerate(names) if name in names[:place]), None)) is not None:
        raise UserError(f"{path}: two columns are called {twice!r}", "give every column a name of its own")
    return names


def _pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """A batch of any size, a few rows at a time: Python's copy of them is many times larger."""
    return (batch.slice(start, ROWS_AT_ONCE) for start in range(0, len(batch), ROWS_AT_ONCE))
