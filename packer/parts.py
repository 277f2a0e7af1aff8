"""Sources in parts: the unit of work. A part is a stretch of one source, and where it begins and ends depends on the rows alone.

for number, raw in enumerate(raw_parts(specs, keys, columns, limit=None)): ...      # what one task tokenizes

Neither the number of workers nor the engine can move a boundary, so a part that is there already is the part that would be made again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from packer import source as sources
from packer.errors import UserError
from packer.files import remove_temporary
from packer.folder import keep_only
from packer.source import SourceSpec
from packer.sources.raw_row import RawRow
from packer.token_part import part_name, read_part

# Of the source. Small, so that two workers share a small corpus and a killed build loses little; not so small that files are many.
_PART_BYTES = 8 << 20
_PART_ROWS = 16_384


@dataclass(frozen=True, kw_only=True, slots=True)
class RawPart:
    """Consecutive rows of one source. number, key: the part's (`packer.keys`). first_row: the place in the source of values[0]. places: of each, for people. size: bytes of the source."""

    number: int
    key: str
    source: int
    is_eval: bool
    first_row: int
    values: tuple[object, ...]
    places: tuple[str, ...]
    size: int


def raw_parts(
    specs: Sequence[SourceSpec], keys: Sequence[str], columns: Collection[str], *, limit: int | None
) -> Iterator[RawPart]:
    """The rows of all sources in order, 8 MiB or 16,384 rows at a time; keys: one a source.

    limit counts training conversations over all sources; an eval source is cut to the same number.
    """
    left, number = limit, 0
    for source, (spec, key) in enumerate(zip(specs, keys, strict=True)):
        first_row = 0
        for rows in _stretches(sources.read(spec, columns, limit=limit if spec.is_eval else left)):
            yield RawPart(
                number=number,
                key=key,
                source=source,
                is_eval=spec.is_eval,
                first_row=first_row,
                values=tuple(row.value for row in rows),
                places=tuple(row.place for row in rows),
                size=round(sum(row.size for row in rows)),
            )
            number += 1
            first_row += len(rows)
            if left is not None and not spec.is_eval:
                left -= len(rows)


def _stretches(rows: Iterator[RawRow]) -> Iterator[list[RawRow]]:
    stretch: list[RawRow] = []
    size = 0.0
    for row in rows:
        stretch.append(row)
        # Rows of a file that does not say how large they are go by their number alone.
        size += row.size
        if size >= _PART_BYTES or len(stretch) >= _PART_ROWS:
            yield stretch
            stretch, size = [], 0.0
    if stretch:
        yield stretch


class Parts:
    """The parts of a token store, of which some may be there from a build that was killed. kept: how many were; count: of how many.

    made = engine.map(..., parts.due(), ...)
    for path in parts.in_order(made): ...
    """

    def __init__(self, folder: Path, raw: Iterator[RawPart]) -> None:
        self._folder = folder
        self._raw = raw
        self.kept = 0
        self.count = 0
        folder.mkdir(parents=True, exist_ok=True)
        remove_temporary(folder)

    def due(self) -> Iterator[RawPart]:
        """The parts that are not there yet, in order."""
        for raw in self._raw:
            self.count += 1
            if _is_there(self._folder / part_name(raw.number), raw):
                self.kept += 1
            else:
                yield raw

    def in_order(self, made: Iterator[int]) -> Iterator[Path]:
        """The files of all parts in order, each as soon as it and those before it are there; made: the numbers of those that were due.

        At the end, what else lies in the folder is removed: parts of other tokens.
        """
        ready = 0
        for number in made:
            # Those between two that were due were there.
            yield from (self._folder / part_name(place) for place in range(ready, number + 1))
            ready = number + 1
        yield from (self._folder / part_name(place) for place in range(ready, self.count))
        keep_only(self._folder, {part_name(place) for place in range(self.count)})


def _is_there(path: Path, raw: RawPart) -> bool:
    """Whether the file is a part of these very rows, decided by the same, and whole."""
    if not path.is_file():
        return False
    try:
        head, part = read_part(path, validate=True)
    except UserError:
        return False
    due = (raw.key, raw.source, raw.is_eval, raw.first_row, len(raw.values))
    return (head.key, head.source, head.is_eval, head.first_row, head.rows) == due and head.digest == part.digest()
