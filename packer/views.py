"""One shard mapped into memory: where each column of each record batch lies in the file, found once, so that a row is a few slices of the map.

All record batches of 16 rows in a shard have the same Arrow metadata, byte for byte, so their columns lie at the same distances from where the
batch starts. Arrow decodes and checks the first of each kind (`Places`); every other batch is held against those bytes before it is read for the
first time, and costs no more than one byte of memory afterwards.

    shard = MappedShard(path, rows=4096, capacity=8192, max_segments=16, known={})
    shard.row(17).input_ids
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.errors import UserError
from packer.schema import ROWS_PER_BATCH, RowBatch, position_dtype, shard_schema
from packer.types import Int32Array, Row

# What pyarrow, numpy and struct raise on metadata that a damaged disk has changed.
DAMAGE = (
    pa.ArrowException,
    OSError,
    ValueError,
    TypeError,
    KeyError,
    IndexError,
    OverflowError,
    RuntimeError,
    struct.error,
)
RESTORE = "restore the shard from a copy, or build the folder again"
_NAMES = tuple(field.name for field in fields(RowBatch))
_BOOL = np.dtype(np.bool_)
_MAGIC = b"ARROW1"
# A Block of Arrow's File.fbs: where a record batch's metadata starts in the file, and how long metadata and body are.
_BLOCK = np.dtype(
    {"names": ["start", "meta", "body"], "formats": ["<i8", "<i4", "<i8"], "offsets": [0, 8, 16], "itemsize": 24}
)
_RECORD_BATCHES = 3  # the field's number in Arrow's Footer table
_MOST_KINDS = 255  # that are remembered; ours are two: full, and the last


@dataclass(frozen=True, kw_only=True, slots=True)
class Places:
    """Where a kind of record batch has its columns: bytes from the batch's start (a multiple of 8) to the first value of each.

    rows: how many it has. of_row: for each of them where its own values start, in the order of `RowBatch`, counted in values and not in bytes (in
    bytes for the mask): what `MappedShard.row` would otherwise reckon for every row. -1 for a column that is not there (`example_lens`).
    """

    rows: int
    bytes_to: Mapping[str, int]
    of_row: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, bytes_to: Mapping[str, int], *, rows: int, capacity: int, max_segments: int) -> Places:
        widths = _widths(capacity, max_segments) | {"loss_mask": capacity // 8}
        sizes = {"loss_mask": 1, "position_ids": position_dtype(capacity).itemsize, "example_ids": 8, "sum_sq_len": 8}
        of_row = tuple(
            tuple(
                bytes_to[name] // sizes.get(name, 4) + place * widths.get(name, 1) if name in bytes_to else -1
                for name in _NAMES
            )
            for place in range(rows)
        )
        return cls(rows=rows, bytes_to=bytes_to, of_row=of_row)


def _widths(capacity: int, max_segments: int) -> dict[str, int]:
    """Values a row of each column that has more than one."""
    widths = dict.fromkeys(("input_ids", "loss_mask", "position_ids"), capacity)
    return widths | {"cu_seqlens": max_segments + 1, "example_ids": max_segments, "example_lens": max_segments}


Kind = tuple[bytes, int]
"""A record batch's metadata as it stands in the file, and the length of its body: what decides its places."""


class MappedShard:
    """A shard file as a memory map. Raises UserError where its schema, its batches or their metadata are not what the manifest says.

    known: the places of every kind of batch met so far, shared by the shards of a corpus (they have the same). Safe to read from several threads.
    """

    def __init__(
        self, path: Path, *, rows: int, capacity: int, max_segments: int, align: int, known: dict[Kind, Places]
    ) -> None:
        self._path, self._rows, self._known = path, rows, known
        self._capacity, self._max_segments = capacity, max_segments
        expected = shard_schema(capacity=capacity, max_segments=max_segments, align=align)
        self._names: list[str] = expected.names
        batches = -(-rows // ROWS_PER_BATCH)
        try:
            with pa.memory_map(str(path)) as file:
                # The buffer keeps the map when the file is closed: thousands of shards need no open files.
                self._buffer: pa.Buffer = file.read_buffer()
            reader = pa.ipc.open_file(pa.BufferReader(self._buffer))
            fits = reader.schema.equals(expected, check_metadata=True)
            found = reader.num_record_batches
            raw = np.frombuffer(self._buffer, dtype=np.uint8)
            blocks = _blocks(raw, found) if fits else np.zeros(0, _BLOCK)
        except DAMAGE as error:
            raise unreadable(path, error) from None
        if not fits:
            raise UserError(
                f"{path}: its columns are not those of the manifest",
                "build the folder again: shards of another build lie in it",
            )
        if found != batches:
            raise UserError(f"{path}: its rows are not those of the manifest", RESTORE)
        self._blocks, self._start = blocks, blocks["start"]
        self._uint8 = raw
        self._int32 = raw[: len(raw) // 4 * 4].view(np.int32)
        self._int64 = raw[: len(raw) // 8 * 8].view(np.int64)
        self._positions = raw[: len(raw) // 4 * 4].view(position_dtype(capacity))
        self._position_shift = self._positions.itemsize // 2  # of bytes to values: itemsize is 2 or 4
        self._kinds = bytearray(batches)  # 0: not looked at yet; k: of self._places[k - 1]
        self._places: list[Places] = []

    def row(self, number: int) -> Row:
        """Row `number` of the shard; its arrays are read-only views of the map, but for the mask, which is unpacked."""
        batch, place = divmod(number, ROWS_PER_BATCH)
        of_row = self._at(batch).of_row[place]
        ids, bits, positions, bounds, segments, examples, example_ids, supervised, squares, own = of_row
        start = self._start.item(batch)
        words, longs = start >> 2, start >> 3
        ids, bits, bounds, example_ids = ids + words, bits + start, bounds + words, example_ids + longs
        positions += start >> self._position_shift
        capacity, int32, int64 = self._capacity, self._int32, self._int64
        return Row(
            input_ids=int32[ids : ids + capacity],
            loss_mask=np.unpackbits(self._uint8[bits : bits + (capacity >> 3)], bitorder="little").view(_BOOL),
            position_ids=self._positions[positions : positions + capacity],
            cu_seqlens=int32[bounds : bounds + self._max_segments + 1],
            num_segments=int32.item(words + segments),
            num_examples=int32.item(words + examples),
            example_ids=int64[example_ids : example_ids + self._max_segments],
            num_supervised=int32.item(words + supervised),
            sum_sq_len=int64.item(longs + squares),
            example_lens=int32[words + own : words + own + self._max_segments] if own >= 0 else None,
        )

    def input_ids(self, number: int) -> Int32Array:
        """int32 [C]: the ids of row `number` alone."""
        batch, place = divmod(number, ROWS_PER_BATCH)
        first = self._at(batch).of_row[place][0] + (self._start.item(batch) >> 2)
        return self._int32[first : first + self._capacity]

    def batch(self, batch: int) -> RowBatch:
        """All rows of record batch number `batch`, the mask unpacked."""
        at, start = self._at(batch), self._start.item(batch)

        def values(name: str, source: np.ndarray, width: int = 1) -> np.ndarray:
            first = (start + at.bytes_to[name]) // source.itemsize
            found = source[first : first + at.rows * width]
            return found.reshape(at.rows, width) if width > 1 else found

        bits = values("loss_mask", self._uint8, self._capacity // 8)
        return RowBatch(
            input_ids=values("input_ids", self._int32, self._capacity),
            loss_mask=np.unpackbits(bits, axis=1, bitorder="little").view(np.bool_),
            position_ids=values("position_ids", self._positions, self._capacity),
            cu_seqlens=values("cu_seqlens", self._int32, self._max_segments + 1),
            num_segments=values("num_segments", self._int32),
            num_examples=values("num_examples", self._int32),
            example_ids=values("example_ids", self._int64, self._max_segments),
            num_supervised=values("num_supervised", self._int32),
            sum_sq_len=values("sum_sq_len", self._int64),
            example_lens=(
                values("example_lens", self._int32, self._max_segments) if "example_lens" in at.bytes_to else None
            ),
        )

    def column(self, name: str) -> NDArray[np.int32] | NDArray[np.int64]:
        """An integer column over all rows of the shard, in its own type: [rows], or [rows, width] of lists."""
        values: np.ndarray = self._int64 if name in ("sum_sq_len", "example_ids") else self._int32
        width = _widths(self._capacity, self._max_segments).get(name, 1)
        found = np.empty(self._rows * width, dtype=values.dtype)
        for batch, start in enumerate(self._start.tolist()):
            at = self._at(batch)
            first, place = batch * ROWS_PER_BATCH * width, (start + at.bytes_to[name]) // values.itemsize
            found[first : first + at.rows * width] = values[place : place + at.rows * width]
        return found.reshape(self._rows, width) if width > 1 else found

    def _at(self, batch: int) -> Places:
        kind = self._kinds[batch]
        return self._places[kind - 1] if kind else self._learn(batch)

    def _learn(self, batch: int) -> Places:
        """Holds a batch's metadata against the kinds that are known; one of a new kind is decoded and checked by Arrow."""
        start, meta, body = self._blocks[batch].item()
        kind = (self._uint8[start : start + meta].tobytes(), body)
        places = self._known.get(kind)
        if places is None:
            places = self._decode(batch, start, start + meta + body)
            if len(self._known) < _MOST_KINDS:
                self._known[kind] = places
        due = min(ROWS_PER_BATCH, self._rows - batch * ROWS_PER_BATCH)
        if places.rows != due:
            raise UserError(
                f"{self._path}: rows from {batch * ROWS_PER_BATCH} on: {places.rows} rows where the manifest has {due}",
                RESTORE,
            )
        if places not in self._places and len(self._places) < _MOST_KINDS:
            self._places.append(places)
        if places in self._places:
            self._kinds[batch] = self._places.index(places) + 1
        return places

    def _decode(self, batch: int, start: int, end: int) -> Places:
        try:
            read = pa.ipc.open_file(pa.BufferReader(self._buffer)).get_batch(batch)
            columns = {name: read.column(name) for name in self._names}
            for column in columns.values():
                column.validate()  # sizes of buffers against lengths: no value is read
            nulls = sum(column.null_count for column in columns.values())
            bytes_to = {name: self._place_of(column, start, end) for name, column in columns.items()}
        except DAMAGE as error:
            raise unreadable(self._path, error) from None
        if nulls:
            raise UserError(
                f"{self._path}: rows from {batch * ROWS_PER_BATCH} on: {nulls} places without a value", RESTORE
            )
        return Places.of(bytes_to, rows=len(read), capacity=self._capacity, max_segments=self._max_segments)

    def _place_of(self, column: pa.Array, start: int, end: int) -> int:
        """Bytes from `start` to the values of a column; raises ValueError where they do not lie before `end` as they are."""
        values = column.flatten() if pa.types.is_fixed_size_list(column.type) else column
        buffer = values.buffers()[1]
        first = buffer.address - self._buffer.address
        if values.offset or first % 8 or not start <= first <= first + buffer.size <= end:
            raise ValueError("its columns are compressed, or do not begin at multiples of 8 bytes")
        return int(first - start)


def unreadable(path: Path, error: BaseException) -> UserError:
    """A shard whose Arrow metadata says what cannot be."""
    return UserError(f"{path}: not a readable shard ({' '.join(str(error).split()) or type(error).__name__})", RESTORE)


def _blocks(raw: NDArray[np.uint8], count: int) -> np.ndarray:
    """Where the record batches lie, as the file's footer says: a view of it. Raises ValueError or struct.error where they cannot lie there.

    The footer is a flatbuffer (Arrow's format/File.fbs) before the file's last ten bytes: its length as int32, and the magic.
    """
    tail = len(raw) - len(_MAGIC) - 4
    length = int.from_bytes(raw[tail : tail + 4].tobytes(), "little")
    if raw[tail + 4 :].tobytes() != _MAGIC or not 0 < length <= tail:
        raise ValueError("no footer")
    footer = raw[tail - length : tail].data

    def number(form: str, at: int) -> int:
        if at < 0:
            raise ValueError("the footer points outside itself")
        return int(struct.unpack_from(form, footer, at)[0])

    table = number("<I", 0)
    vtable = table - number("<i", table)
    vector = table + number("<H", vtable + 4 + 2 * _RECORD_BATCHES)
    vector += number("<I", vector)
    if number("<I", vector) != count:
        raise ValueError("the footer's counts differ")
    blocks: np.ndarray = (
        np.frombuffer(footer, dtype=_BLOCK, count=count, offset=vector + 4) if count else np.zeros(0, _BLOCK)
    )
    start, meta, body = (blocks[name].astype(np.int64) for name in ("start", "meta", "body"))
    limit = tail - length
    if ((start < 0) | (meta <= 0) | (body < 0) | (start > limit) | (body > limit)).any() or (start % 8).any():
        raise ValueError("the footer points outside the file")
    # One after the other: an offset that was changed to another batch's would give that batch's rows.
    end = start + meta + body
    if (end > np.append(start[1:], limit)).any():
        raise ValueError("the footer's batches overlap")
    return blocks
