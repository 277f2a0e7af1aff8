"""Rows out of files: JSON lines, JSON, Parquet and Arrow, plain or compressed, on this machine or at any address that fsspec knows.

    for row in read_file("chats.jsonl.gz", columns={"messages"}): ...

A row that cannot be parsed is a row too: nothing is lost on the way to the ledger.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import PurePosixPath
from typing import BinaryIO

import fsspec
import pyarrow as pa
import xxhash

from packer.errors import UserError
from packer.network import first_line, unreachable

SUFFIXES = (".jsonl", ".ndjson", ".json", ".parquet", ".arrow")
COMPRESSED = (".gz", ".bz2", ".xz", ".zst")
ROWS_AT_ONCE = 512
_BLOCK_BYTES = 1 << 20
_COPY_HINT = "check that it was copied whole"


@dataclass(frozen=True, kw_only=True, slots=True)
class RawRow:
    """One row as it was read. place: "chats.jsonl:1841" or "train_sft row 12". number: from 0 in its source. value: the row, or the bytes of its JSON,
    which whoever encodes it parses (`parsed`), or the NotJsonError that says why it has none. size: its share of its file, in bytes, where known.
    """

    number: int
    place: str
    value: object
    size: float = 0


class NotJsonError(Exception):
    """A row whose text is not JSON; says where in the text."""


def parsed(value: object) -> object:
    """What a row's value stands for; raises NotJsonError."""
    if isinstance(value, NotJsonError):
        raise value
    if not isinstance(value, bytes):
        return value
    try:
        return json.loads(value)
    except json.JSONDecodeError as error:
        # Its own words say "line 1" of every row, which people take for the file's.
        raise NotJsonError(f"{error.msg} at column {error.colno}") from None
    except (ValueError, RecursionError) as error:
        # ValueError covers bad UTF-8; a line of ten thousand brackets ends in RecursionError.
        raise NotJsonError(str(error) or type(error).__name__) from None


def kind_of(path: str) -> str | None:
    """ ".jsonl" for "a/chats.jsonl.gz"; None for a file that is not read."""
    name = PurePosixPath(path)
    suffix = PurePosixPath(name.stem).suffix if name.suffix in COMPRESSED else name.suffix
    return suffix if suffix in SUFFIXES else None


def size_of(path: str) -> int | None:
    """A file's bytes as its rows add up to them; None where they do not (it is compressed, or of a kind that does not say)."""
    if PurePosixPath(path).suffix in COMPRESSED or kind_of(path) == ".arrow":
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
    if kind_of(path) != ".parquet" or PurePosixPath(path).suffix in COMPRESSED:
        return None
    import pyarrow.parquet as pq

    with open_binary(path) as file:
        try:
            return int(pq.ParquetFile(pa.PythonFile(file, mode="r")).metadata.num_rows)
        except pa.ArrowInvalid:
            return None


def base_name(path: str) -> str:
    """A file's own name, as UTF-8 can hold it."""
    return PurePosixPath(path.replace("\\", "/")).name.encode("utf-8", "backslashreplace").decode()


@contextmanager
def open_binary(path: str) -> Iterator[BinaryIO]:
    """A file's bytes, decompressed by its suffix; raises UserError where it cannot be opened."""
    try:
        with fsspec.open(path, "rb", compression="infer") as file:
            # zstandard's reader does not know lines.
            yield io.BufferedReader(file) if path.endswith(".zst") else file
    except unreachable(EOFError) as error:
        raise UserError(
            f"{path}: {first_line(error)}", "check that the file is there, whole, and may be read"
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


def read_file(path: str, columns: Collection[str]) -> Iterator[RawRow]:
    """The rows of one file in order; raises UserError where the file as a whole cannot be read.

    columns: those that anything will be made of; a file that stores by column gives only these.
    """
    readers: dict[str, Callable[[str, BinaryIO], Iterator[RawRow]]] = {
        ".jsonl": _jsonl,
        ".ndjson": _jsonl,
        ".json": _json,
        ".parquet": partial(_parquet, columns=columns),
        ".arrow": partial(_arrow, columns=columns),
    }
    with open_binary(path) as file:
        yield from readers[kind_of(path) or ".jsonl"](path, file)


def _jsonl(path: str, file: BinaryIO) -> Iterator[RawRow]:
    name, number = base_name(path), 0
    for line_number, line in enumerate(file, start=1):
        text = line.strip()
        if line_number == 1:
            text = text.removeprefix(b"\xef\xbb\xbf")
        if text:
            yield RawRow(number=number, place=f"{name}:{line_number}", value=text, size=len(line))
            number += 1


def _json(path: str, file: BinaryIO) -> Iterator[RawRow]:
    whole = file.read()
    size = len(whole)
    try:
        document = json.loads(whole)
    except (ValueError, RecursionError) as error:
        raise UserError(
            f"{path}: not JSON ({error})", "if the file holds one object a line, give it the suffix .jsonl"
        ) from None
    if not isinstance(document, list):
        raise UserError(
            f"{path}: holds one {type(document).__name__}, not a list of rows",
            "write a list of objects, or one object a line in a .jsonl file",
        )
    for number, value in enumerate(document):
        # As bytes, like a line: what is nested too deeply to be sent to another process is told of this row alone.
        try:
            text: object = json.dumps(value).encode()
        except (ValueError, RecursionError) as error:
            text = NotJsonError(str(error))
        share = size / len(document)
        yield RawRow(number=number, place=f"{base_name(path)} row {number}", value=text, size=share)


def _parquet(path: str, file: BinaryIO, columns: Collection[str]) -> Iterator[RawRow]:
    import pyarrow.parquet as pq

    try:
        parquet = pq.ParquetFile(pa.PythonFile(file, mode="r"))
        names = parquet.schema_arrow.names
        wanted = [name for name in names if name in columns]
        share = (size_of(path) or 0) / max(parquet.metadata.num_rows, 1)
        batches = parquet.iter_batches(batch_size=ROWS_AT_ONCE, columns=wanted)
        yield from _rows(base_name(path), batches, names, share)
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
        names = reader.schema.names
        wanted = [name for name in names if name in columns]
        yield from _rows(
            base_name(path), (piece for batch in batches for piece in _pieces(batch.select(wanted))), names
        )
    except pa.ArrowInvalid as error:
        raise UserError(
            f"{path}: neither a whole Arrow file nor an Arrow stream ({first_line(error)})", _COPY_HINT
        ) from None


def _pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """A batch of any size, a few rows at a time: Python's copy of them is many times larger."""
    return (batch.slice(start, ROWS_AT_ONCE) for start in range(0, len(batch), ROWS_AT_ONCE))


def _rows(file: str, batches: Iterable[pa.RecordBatch], names: Sequence[str], share: float = 0) -> Iterator[RawRow]:
    """Row by row, each with the names of all columns that the file has, so that people see them where none of those is the one."""
    number = 0
    for batch in batches:
        for value in _python(batch):
            row = with_names(value, names) if isinstance(value, dict) else value
            yield RawRow(number=number, place=f"{file} row {number}", value=row, size=share)
            number += 1


def with_names(row: dict[str, object], names: Sequence[str]) -> dict[str, object]:
    """A row with every column of its table; null where it was null, or was not read."""
    return {**dict.fromkeys(names), **row}


def _python(batch: pa.RecordBatch) -> list[object]:
    """The rows of a batch as Python values; one that Python cannot hold (text that is not UTF-8, say) is a NotJsonError of its own."""
    try:
        return [without_nulls(value) if value else value for value in batch.to_pylist()]
    except (ValueError, OverflowError, pa.ArrowException) as error:
        if len(batch) == 1:
            return [NotJsonError(f"cannot be read ({first_line(error)})")]
        return [value for start in range(len(batch)) for value in _python(batch.slice(start, 1))]


def without_nulls(value: object) -> object:
    """A value from a columnar file without its null keys: Arrow gives every struct every key that any of them has.

    (In JSON a null was written by somebody, and stays where it is: in the arguments of a tool call it means something.)
    """
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    return value
