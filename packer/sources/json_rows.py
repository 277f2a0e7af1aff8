"""Rows of JSON files, however the objects lie in them: one a line, one over many lines, several behind each other, in a list, or in a wrapper.

    for row in json_rows("chats.json", "chats.json", file, split="", by_line=False): ...

The suffix decides only what the text leaves open: lines are the rule in `.jsonl` and `.ndjson`, where a line that is not JSON is a row that is not,
and one document is the rule in `.json`, where text that is not JSON is no file of rows.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import BinaryIO

from packer.errors import UserError
from packer.sources.raw_row import NotJsonError, RawRow, parsed
from packer.sources.split_names import keywords_of
from packer.sources.text_encoding import without_bom

# Keys of an object that is no row but holds the rows.
_WRAPPERS = ("data", "rows")
# Of a file whose first line is no JSON, so much is searched for an object over many lines.
_HEAD_BYTES = 64 << 20
_FIRST_KEY = re.compile(rb'\s*\{\s*"([^"\\]{1,64})"\s*:\s*\[')
_FIRST_KEY_BYTES = 4096
_BLANKS = re.compile(r"\s*")


def json_rows(path: str, name: str, file: BinaryIO, *, split: str, by_line: bool) -> Iterator[RawRow]:
    """Rows in order; raises UserError where the file as a whole is not JSON. name: for places. split: which, where the document holds several.
    by_line: whether the file's suffix says that its objects are one a line."""
    lines: list[bytes] = []
    text = _next_line(file, lines)
    if lines:
        without_bom(lines[0], path)
    try:
        first: object = parsed(text) if text else None
    except NotJsonError:
        head = b"".join(lines) + (file.read(_HEAD_BYTES) + file.readline() if by_line else file.read())
        if _begins_with_value(head):
            yield from _documents(path, name, head + file.read(), split)
        elif by_line:
            yield from _lines(name, chain(io.BytesIO(head), file))
        else:
            raise _not_json(path, head) from None
        return
    one_line = not _next_line(file, lines)
    if one_line and (isinstance(first, list) or not by_line) and text:
        yield from _rows_of_document(path, name, first, split, len(text))
    elif text or by_line:
        yield from _lines(name, chain(lines, file))
    else:
        raise _not_json(path, b"")


def splits_inside(file: BinaryIO) -> tuple[str, ...]:
    """The splits of a document such as {"train": […], "test": […]}; none of any other, of which no more than the first key is read."""
    head = file.read(_FIRST_KEY_BYTES)
    key = _FIRST_KEY.match(head.removeprefix(b"\xef\xbb\xbf"))
    if key is None or not keywords_of(key[1].decode(errors="replace")):
        return ()
    try:
        return tuple(_splits(json.loads(head + file.read())))
    except (ValueError, RecursionError):
        return ()


def _next_line(file: BinaryIO, lines: list[bytes]) -> bytes:
    """The text of the next line that has any; empty at the end. Adds what is read to `lines`."""
    while line := file.readline():
        lines.append(line)
        text = line.strip()
        if len(lines) == 1:
            text = text.removeprefix(b"\xef\xbb\xbf")
        if text:
            return text
    return b""


def _lines(name: str, lines: Iterable[bytes]) -> Iterator[RawRow]:
    number = 0
    for line_number, line in enumerate(lines, start=1):
        text = line.strip()
        if line_number == 1:
            text = text.removeprefix(b"\xef\xbb\xbf")
        if text:
            yield RawRow(number=number, place=f"{name}:{line_number}", value=text, size=len(line))
            number += 1


def _decoded(whole: bytes) -> str:
    """As `json.loads` decodes; raises UnicodeDecodeError, a ValueError."""
    return whole.decode(json.detect_encoding(whole))


def _begins_with_value(head: bytes) -> bool:
    """Whether a text begins with a whole list or object, whatever follows it."""
    try:
        text = _decoded(head).lstrip()
        return text[:1] in ("{", "[") and bool(json.JSONDecoder().raw_decode(text))
    except (ValueError, RecursionError):
        return False


def _documents(path: str, name: str, whole: bytes, split: str) -> Iterator[RawRow]:
    """One document, which may hold the rows; or several objects behind each other, each a row."""
    try:
        text = _decoded(whole)
    except ValueError:
        raise _not_json(path, whole) from None
    values = list(_values(text))
    if len(values) == 1 and not isinstance(values[0][2], NotJsonError):
        yield from _rows_of_document(path, name, values[0][2], split, len(whole))
        return
    line, counted = 1, 0
    for number, (start, end, value) in enumerate(values):
        line, counted = line + text.count("\n", counted, start), start
        row = value if isinstance(value, NotJsonError) else text[start:end].encode("utf-8", "surrogatepass")
        yield RawRow(number=number, place=f"{name}:{line}", value=row, size=len(whole) * (end - start) / len(text))


def _values(text: str) -> Iterator[tuple[int, int, object]]:
    """(start, end, value) of each value; a broken one reaches to the next line that begins with a brace."""
    decoder, place = json.JSONDecoder(), 0
    while True:
        place = _BLANKS.match(text, place).end()  # type: ignore[union-attr]  # it matches everywhere
        if place == len(text):
            return
        try:
            value, end = decoder.raw_decode(text, place)
        except (ValueError, RecursionError) as error:
            next_brace = text.find("\n{", place)
            end = len(text) if next_brace < 0 else next_brace + 1
            why = f"{error.msg} at line {error.lineno}" if isinstance(error, json.JSONDecodeError) else str(error)
            value = NotJsonError(why)
        yield place, end, value
        place = end


def _rows_of_document(path: str, name: str, document: object, split: str, size: int) -> Iterator[RawRow]:
    """The rows of a list, of a wrapper, or the one row that an object is."""
    where = name
    if isinstance(document, dict):
        inside = _splits(document)
        if inside:
            if split not in inside:
                raise UserError(f"{path}: no split {split!r} in it", f"choose one: --split {next(iter(inside))}")
            rows, where = inside[split], f"{name} {split}"
        else:
            rows = _wrapped(document) or [document]
    elif isinstance(document, list):
        rows = document
    else:
        raise UserError(
            f"{path}: holds one {type(document).__name__}, not a list of rows",
            "write a list of objects, or one object a line in a .jsonl file",
        )
    for number, value in enumerate(rows):
        # As bytes, like a line: what is nested too deeply to be sent to another process is told of this row alone.
        try:
            text: object = json.dumps(value).encode()
        except (ValueError, RecursionError) as error:
            text = NotJsonError(str(error))
        yield RawRow(number=number, place=f"{where} row {number}", value=text, size=size / len(rows))


def _is_rows(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(one, dict) for one in value)


def _splits(document: object) -> dict[str, list[object]]:
    """Rows by split, of an object that has nothing but splits."""
    if (
        isinstance(document, dict)
        and document
        and all(keywords_of(key) and _is_rows(rows) for key, rows in document.items())
    ):
        return document
    return {}


def _wrapped(document: dict[str, object]) -> list[object] | None:
    """The rows of an object that holds them under one name, beside nothing but words about them."""
    held = [value for key, value in document.items() if key in _WRAPPERS and value and _is_rows(value)]
    about = [value for value in document.values() if not isinstance(value, list)]
    return held[0] if len(held) == 1 and len(about) == len(document) - 1 else None  # type: ignore[return-value]


def _not_json(path: str, whole: bytes) -> UserError:
    why: object = "no text"
    try:
        json.loads(whole)
    except (ValueError, RecursionError) as error:
        why = error
    return UserError(f"{path}: not JSON ({why})", "if the file holds one object a line, give it the suffix .jsonl")
