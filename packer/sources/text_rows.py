"""Rows of tables and texts: CSV and TSV, where every cell is text and nothing is guessed, and plain text, where every line is a row.

for row in table_rows("chats.csv", "chats.csv", file, delimiter=","): ...      # row.value["prompt"]
for row in line_rows("notes.txt", "notes.txt", file): ...      # row.value == {"text": "…"}
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from typing import BinaryIO

from packer.errors import UserError
from packer.sources.raw_row import BadCellsError, BlankLineError, RawRow
from packer.sources.text_encoding import without_bom

# A cell may hold a whole conversation; Python's own limit is 131,072 characters.
_MOST_CHARACTERS = (1 << 31) - 1


class _Lines:
    """The lines of a file for `csv.reader`. size: bytes read since it was last set to 0."""

    def __init__(self, path: str, file: BinaryIO) -> None:
        self._path = path
        self._lines = iter(file)
        self._is_first = True
        self.size = 0

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        line = next(self._lines)
        self.size += len(line)
        if self._is_first:
            line, self._is_first = without_bom(line, self._path), False
        # What is not UTF-8 comes out as half a surrogate pair, which no UTF-8 can hold.
        return line.decode("utf-8", "surrogateescape")


def table_rows(path: str, name: str, file: BinaryIO, *, delimiter: str) -> Iterator[RawRow]:
    """Rows below the header, each cell as its text; raises UserError where the header or the quotes make no table.

    A place is the line where the row begins. Blank lines are no rows, as in `datasets`.
    """
    csv.field_size_limit(_MOST_CHARACTERS)
    lines = _Lines(path, file)
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    header: list[str] | None = None
    number = 0
    while True:
        begins = reader.line_num + 1
        problem = ""
        try:
            cells = next(reader, None)
        except csv.Error as error:
            cells, problem = [], str(error)
        if "unexpected end of data" in problem:
            raise UserError(
                f"{path}:{begins}: a quote that opens in this row is never closed",
                'close it; a quote inside a quoted cell is written twice: "She said ""yes"""',
            )
        if cells is None:
            return
        if not cells and not problem:
            lines.size = 0
            continue
        if header is None:
            header = _header(path, cells, problem)
            lines.size = 0
            continue
        if not problem and len(cells) != len(header):
            problem = f"{len(cells)} cells, but the header has {len(header)}"
        if not problem and not all(map(_is_unicode, cells)):
            problem = "not UTF-8"
        if problem and reader.line_num > begins:
            problem += f"; lines {begins} to {reader.line_num}"
        value: object = BadCellsError(problem) if problem else dict(zip(header, cells, strict=True))
        yield RawRow(number=number, place=f"{name}:{begins}", value=value, size=lines.size)
        lines.size = 0
        number += 1


def _header(path: str, cells: list[str], problem: str) -> list[str]:
    twice = next((cell for place, cell in enumerate(cells) if cell in cells[:place]), None)
    if not problem and not all(map(_is_unicode, cells)):
        problem = "not UTF-8"
    if not problem and twice is not None:
        problem = f"two columns are called {twice!r}"
    if problem:
        raise UserError(
            f"{path}: its first line is no header ({problem})", "write the names of the columns there, in UTF-8"
        )
    return cells


def line_rows(path: str, name: str, file: BinaryIO) -> Iterator[RawRow]:
    """Every line as {"text": line}, ended by a line feed, a carriage return or both; a blank one is a row that is counted and not learned."""
    number = 0
    for read, line in enumerate(file):
        text = line if read else without_bom(line, path)
        for piece in text.removesuffix(b"\n").removesuffix(b"\r").split(b"\r"):
            yield RawRow(number=number, place=f"{name}:{number + 1}", value=_line(piece), size=len(piece) + 1)
            number += 1


def _line(piece: bytes) -> object:
    try:
        text = piece.decode()
    except UnicodeDecodeError as error:
        return BadCellsError(f"not UTF-8 at byte {error.start}")
    return {"text": text} if text.strip() else BlankLineError("a blank line")


def _is_unicode(text: str) -> bool:
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)
