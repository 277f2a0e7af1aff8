"""One shard mapped into memory: where each column of each record batch lies in the file, found once, so that a row is a few slices of the map.

All record batches of 16 rows in a shard have the same Arrow metadata, byte for byte, and lie at equal distances, so each column of all of them is one
strided view of the file. Arrow decodes and checks the first of each kind (`Places`); every other batch is held against those bytes before it is
read for the first time, and costs no more than one byte of memory afterwards.

    shard = MappedShard(path, rows=4096, schema=shard_schema(capacity=8192, max_segments=16), known={})
    shard.row(17).input_ids
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from threading import Lock

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.errors import UserError
from packer.schema import ROWS_PER_BATCH, RowBatch, position_dtype
from packer.types import Int32Array, Int64Array, Row

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
_OPTIONAL = ("example_lens", "loss_weights")
_BOOL = np.dtype(np.bool_)
_MAGIC = b"ARROW1"
# A Block of Arrow's File.fbs: where a record batch's metadata starts in the file, and how long metadata and body are.
_BLOCK = np.dtype(
    {"names": ["start", "meta", "body"], "formats": ["<i8", "<i4", "<i8"], "offsets": [0, 8, 16], "itemsize": 24}
)
_RECORD_BATCHES = 3  # the field's number in Arrow's Footer table
_MOST_KINDS = 255  # that are remembered; ours are two: full, and the last
_AMONG, _ALONE = 1, 2  # batches at equal distances, or not


@dataclass(frozen=True, kw_only=True, slots=True)
class Places:
    """Where a kind of record batch has its columns: bytes from the batch's start (a multiple of 8) to the first value of each; rows: how many it has."""

    rows: int
    bytes_to: Mapping[str, int]


Kind = tuple[bytes, int]
"""A record batch's metadata as it stands in the file, and the length of its body: what decides its places."""


class _Alike:
    """Record batches of one kind at equal distances in the file: each column of all of them as one view, [batches, rows] or [batches, rows, width].

    The mask is as it is stored, uint8 [batches, rows, C/8].
    """

    def __init__(
        self, raw: NDArray[np.uint8], starts: Int64Array, places: Places, *, capacity: int, max_segments: int
    ) -> None:
        step = int(starts[1] - starts[0]) if len(starts) > 1 else 0
        types = {"loss_mask": "u1", "position_ids": position_dtype(capacity), "example_ids": "i8", "sum_sq_len": "i8"}
        widths = dict.fromkeys(("input_ids", "position_ids"), capacity) | {"loss_mask": capacity // 8}
        widths |= {"cu_seqlens": max_segments + 1, "example_ids": max_segments, "example_lens": max_segments}
        types["loss_weights"], widths["loss_weights"] = "f4", capacity

        def view(name: str) -> np.ndarray:
            kind, width = np.dtype(types.get(name, "i4")), widths.get(name)
            shape: tuple[int, ...] = (len(starts), places.rows)
            strides: tuple[int, ...] = (step, (width or 1) * kind.itemsize)
            if width is not None:
                shape, strides = (*shape, width), (*strides, kind.itemsize)
            found: np.ndarray = np.ndarray(shape, kind, raw, int(starts[0]) + places.bytes_to[name], strides)
            return found

        self.columns = {name: view(name) for name in _NAMES if name in places.bytes_to}
        self._own, self._weights = (self.columns.get(name) for name in _OPTIONAL)
        (
            self._ids,
            self._bits,
            self._positions,
            self._bounds,
            self._segments,
            self._examples,
            self._example_ids,
            self._supervised,
            self._squares,
        ) = (self.columns[name] for name in _NAMES if name not in _OPTIONAL)

    def row(self, batch: int, place: int) -> Row:
        # By position and with one index an array: names, keywords and slices would cost as much again as all of this.
        return Row(
            self._ids[batch, place],
            np.unpackbits(self._bits[batch, place], None, None, "little").view(_BOOL),
            self._positions[batch, place],
            self._bounds[batch, place],
            self._segments.item(batch, place),
            self._examples.item(batch, place),
            self._example_ids[batch, place],
            self._supervised.item(batch, place),
            self._squares.item(batch, place),
            None if self._own is None else self._own[batch, place],
            None if self._weights is None else self._weights[batch, place],
        )

    def ids(self, batch: int, place: int) -> Int32Array:
        ids: Int32Array = self._ids[batch, place]
        return ids

    def batch(self, batch: int) -> RowBatch:
        found = {name: column[batch] for name, column in self.columns.items()}
        mask = np.unpackbits(found["loss_mask"], axis=1, bitorder="little").view(np.bool_)
        return RowBatch(**found | {"loss_mask": mask})


class MappedShard:
    """A shard file as a memory map. Raises UserError where its schema, its batches or their metadata are not what the manifest says.

    schema: `shard_schema` of the build. known: the places of every kind of batch met so far, shared by the shards of a corpus (they have the same). Safe to read from several threads.
    """

    def __init__(self, path: Path, *, rows: int, schema: pa.Schema, known: dict[Kind, Places]) -> None:
        self._path, self._rows, self._known = path, rows, known
        self._capacity, self._max_segments = (
            schema.field(name).type.list_size for name in ("input_ids", "example_ids")
        )
        self._names: list[str] = schema.names
        batches = -(-rows // ROWS_PER_BATCH)
        try:
            with pa.memory_map(str(path)) as file:
                # The buffer keeps the map when the file is closed: thousands of shards need no open files.
                self._buffer: pa.Buffer = file.read_buffer()
            reader = pa.ipc.open_file(pa.BufferReader(self._buffer))
            fits = reader.schema.equals(schema, check_metadata=True)
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
        self._blocks, self._raw = blocks, raw
        # The batches of 16 rows that are laid out like the first of them and lie at equal distances: all of a shard as it was written, but for a last
        # batch of fewer rows. That one, and any of a shard that other software wrote again, have views of their own.
        self._starts = blocks["start"][: rows // ROWS_PER_BATCH].astype(np.int64)
        if len(np.unique(np.diff(self._starts))) > 1:
            self._starts = self._starts[:0]
        self._whole: _Alike | None = None
        self._kind: Kind | None = None
        self._alone: dict[int, _Alike] = {}
        self._looking = Lock()
        self._seen = bytearray(batches)  # 0: not looked at yet; _AMONG, or _ALONE

    def row(self, number: int) -> Row:
        """Row `number` of the shard; its arrays are read-only views of the map, but for the mask, which is unpacked."""
        batch, place = divmod(number, ROWS_PER_BATCH)
        alike, batch = self._at(batch)
        return alike.row(batch, place)

    def input_ids(self, number: int) -> Int32Array:
        """int32 [C]: the ids of row `number` alone."""
        batch, place = divmod(number, ROWS_PER_BATCH)
        alike, batch = self._at(batch)
        return alike.ids(batch, place)

    def batch(self, batch: int) -> RowBatch:
        """All rows of record batch number `batch`, the mask unpacked."""
        alike, batch = self._at(batch)
        return alike.batch(batch)

    def column(self, name: str) -> NDArray[np.int32] | NDArray[np.int64]:
        """An integer column over all rows of the shard, in its own type: [rows], or [rows, width] of lists."""
        for batch in range(len(self._seen)):
            self._at(batch)
        if self._whole is not None and _ALONE not in self._seen[: len(self._starts)]:
            parts = [self._whole.columns[name].reshape(-1, *self._whole.columns[name].shape[2:])]
            parts += [alike.columns[name][0] for alike in self._alone.values()]
        else:
            parts = [alike.columns[name][batch] for alike, batch in map(self._at, range(len(self._seen)))]
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int32)

    def _at(self, batch: int) -> tuple[_Alike, int]:
        """The views that a batch is in, and its place there."""
        seen = self._seen[batch] or self._look(batch)
        if seen == _AMONG:
            return self._whole, batch  # type: ignore[return-value]  # made before the first of them counts as seen
        return self._alone[batch], 0

    def _look(self, batch: int) -> int:
        """Holds a batch's metadata against those that are known; one of a kind that no shard had yet is decoded and checked by Arrow."""
        start, meta, body = self._blocks[batch].item()
        kind = (self._raw[start : start + meta].tobytes(), body)
        places = self._known.get(kind)
        if places is None:
            places = self._decode(batch, start, start + meta + body)
            if len(self._known) < _MOST_KINDS:
                self._known[kind] = places
        due = min(ROWS_PER_BATCH, self._rows - batch * ROWS_PER_BATCH)
        if places.rows != due:
            raise self._wrong(batch, f"{places.rows} rows where the manifest has {due}")
        with self._looking:
            if batch >= len(self._starts) or self._kind not in (None, kind):
                self._alone[batch] = self._alike(np.array([start], dtype=np.int64), places)
                self._seen[batch] = _ALONE
            else:
                if self._whole is None:
                    self._whole, self._kind = self._alike(self._starts, places), kind
                self._seen[batch] = _AMONG
            return self._seen[batch]

    def _alike(self, starts: Int64Array, places: Places) -> _Alike:
        try:
            return _Alike(self._raw, starts, places, capacity=self._capacity, max_segments=self._max_segments)
        except DAMAGE as error:
            raise unreadable(self._path, error) from None

    def _wrong(self, batch: int, what: str) -> UserError:
        return UserError(f"{self._path}: rows from {batch * ROWS_PER_BATCH} on: {what}", RESTORE)

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
            raise self._wrong(batch, f"{nulls} places without a value")
        return Places(rows=len(read), bytes_to=bytes_to)

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
