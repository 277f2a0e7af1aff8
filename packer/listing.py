"""What goes into rows: few numbers an example in memory while the plan is made, the rest in the table `examples/` on disk.

examples = Examples()
write_table(out, (examples.add(listed) for listed in intake.account(parts)))
examples.lengths          # what the plan is made of
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import pyarrow as pa

from packer.arrow import of_numpy, of_words
from packer.examples import EXAMPLES_SCHEMA
from packer.files import write_arrow
from packer.types import BoolArray, Int32Array, Int64Array

# A batch of the table: some megabytes, whatever the parts were.
_ROWS_AT_ONCE = 65_536


@dataclass(frozen=True, kw_only=True, slots=True)
class Listed:
    """The examples of one part of the token store, in order; arrays [n].

    source, row: where the conversation came from. piece, copy: which piece and which copy of it. starts, lengths: the stretch of the part's tokens.
    supervised: targets.
    """

    source: Int32Array
    row: Int64Array
    piece: Int32Array
    copy: Int32Array
    starts: Int32Array
    lengths: Int32Array
    supervised: Int32Array
    is_eval: BoolArray


class Examples:
    """All examples by number: 9 bytes each.

    starts, lengths int32 [N]: tokens [start, start + length) of its part of the token store. is_eval bool [N]. supervised: targets of (train, eval).
    """

    def __init__(self) -> None:
        self._starts, self._lengths = Growing(np.int32), Growing(np.int32)
        self._is_eval = Growing(np.bool_)
        self._counts: list[int] = []
        self.supervised = [0, 0]

    def add(self, listed: Listed) -> Listed:
        """Takes the examples of the next part, and passes them on."""
        self._starts.add(listed.starts)
        self._lengths.add(listed.lengths)
        self._is_eval.add(listed.is_eval)
        self._counts.append(len(listed.lengths))
        for split in (0, 1):
            self.supervised[split] += int(listed.supervised[listed.is_eval == bool(split)].sum(dtype=np.int64))
        return listed

    def __len__(self) -> int:
        return sum(self._counts)

    @property
    def starts(self) -> Int32Array:
        """int32 [N]: where each example begins in its part of the token store."""
        return self._starts.values

    @property
    def lengths(self) -> Int32Array:
        """int32 [N]: tokens of each example."""
        return self._lengths.values

    @property
    def is_eval(self) -> BoolArray:
        """bool [N]: which examples are of the eval split."""
        return self._is_eval.values

    def part_of(self, numbers: Int64Array) -> Int32Array:
        """The number of the part that holds each of these examples, int32."""
        first = np.cumsum(self._counts)
        return np.searchsorted(first, numbers, side="right").astype(np.int32)


class Growing:
    """One long array that grows at its end.

    Its memory is asked of the system and not of the allocator, in steps of twice the size: what is not filled yet takes none, and what was outgrown
    is given back at once. As many small arrays it would lie between what comes and goes, and hold several times its size.
    """

    def __init__(self, kind: type[np.generic]) -> None:
        self._kind = np.dtype(kind)
        self._count = 0
        self._room = self._fresh(1 << 16)

    def add(self, values: np.ndarray) -> None:
        end = self._count + len(values)
        if end > len(self._room):
            room = self._fresh(max(end, 2 * len(self._room)))
            room[: self._count] = self.values
            self._room = room
        self._room[self._count : end] = values
        self._count = end

    @property
    def values(self) -> np.ndarray:
        """What was added so far: a view."""
        return self._room[: self._count]

    def _fresh(self, count: int) -> np.ndarray:
        return np.frombuffer(mmap.mmap(-1, count * self._kind.itemsize, flags=mmap.MAP_PRIVATE), dtype=self._kind)


def write_table(out: Path, listed: Iterable[Listed]) -> None:
    """examples/: where each example came from, its size, and the split it is in; written as they come."""
    (out / "examples").mkdir(exist_ok=True)
    write_arrow(out / "examples" / "part-00000.arrow", EXAMPLES_SCHEMA, _batches(listed))


def _batches(listed: Iterable[Listed]) -> Iterator[pa.RecordBatch]:
    first, waiting, count = 0, [], 0
    for more in listed:
        waiting.append(more)
        count += len(more.lengths)
        while count >= _ROWS_AT_ONCE:
            whole = _concatenated(waiting)
            yield _batch(_sliced(whole, 0, _ROWS_AT_ONCE), first)
            first += _ROWS_AT_ONCE
            count -= _ROWS_AT_ONCE
            waiting = [_sliced(whole, _ROWS_AT_ONCE, count + _ROWS_AT_ONCE)]
    if count:
        yield _batch(_concatenated(waiting), first)


def _concatenated(listed: list[Listed]) -> Listed:
    return Listed(
        **{field.name: np.concatenate([getattr(one, field.name) for one in listed]) for field in fields(Listed)}
    )


def _sliced(listed: Listed, start: int, end: int) -> Listed:
    return Listed(**{field.name: getattr(listed, field.name)[start:end] for field in fields(Listed)})


def _batch(listed: Listed, first: int) -> pa.RecordBatch:
    columns: dict[str, np.ndarray] = {
        "example_id": np.arange(first, first + len(listed.lengths)),
        "source": listed.source,
        "row": listed.row,
        "piece": listed.piece,
        "copy": listed.copy,
        "tokens": listed.lengths,
        "supervised": listed.supervised,
    }
    split = of_words(listed.is_eval, ("train", "eval"))
    arrays = [
        of_numpy(columns[field.name], field.type) if field.name in columns else split for field in EXAMPLES_SCHEMA
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=EXAMPLES_SCHEMA)
