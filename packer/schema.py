"""The columns of a shard and the rules they obey, written down once for the writer, the reader and the checks.

`shard_schema` is the Arrow schema; `broken_rules` holds a batch of rows against every rule of `packer/FORMAT.md` that can be seen without the
tokenizer, vectorised over the batch, so that it is cheap enough to run on everything written and everything read.

    >>> shard_schema(capacity=64, max_segments=8).field("cu_seqlens").type
    FixedSizeListType(fixed_size_list<item: int32 not null>[9])
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.types import BoolArray, Float32Array, Int32Array, Int64Array

# The newest that this code reads; a build has the lowest that says what is in it (`format_version`).
FORMAT_VERSION = 2
# What a target may count in the loss. Past these the others of its step would have no part in it, or it none.
LEAST_LOSS_WEIGHT, MOST_LOSS_WEIGHT = 1e-6, 1e3
ROWS_PER_BATCH = 16
CAPACITY_MULTIPLE = 64
SEGMENTS_MULTIPLE = 8
_UINT16_CAPACITY = 65536


def position_dtype(capacity: int) -> np.dtype[np.uint16] | np.dtype[np.int32]:
    """uint16 as long as every position of a row of this capacity fits it, else int32."""
    return np.dtype(np.uint16) if capacity <= _UINT16_CAPACITY else np.dtype(np.int32)


def format_version(*, weighted: bool) -> int:
    """Of a build: 2 where targets have weights other than 1, and so its shards a column that readers of version 1 do not know."""
    return 2 if weighted else 1


def shard_schema(*, capacity: int, max_segments: int, align: int = 1, weighted: bool = False) -> pa.Schema:
    """The Arrow schema of a shard, C and S in its metadata; with an alignment above 1 that too, and the column `example_lens`; weighted: with the column
    `loss_weights`."""

    def fixed(value_type: pa.DataType, size: int) -> pa.DataType:
        return pa.list_(pa.field("item", value_type, nullable=False), size)

    columns = {
        "input_ids": fixed(pa.int32(), capacity),
        "loss_mask": fixed(pa.bool_(), capacity),
        "position_ids": fixed(pa.from_numpy_dtype(position_dtype(capacity)), capacity),
        "cu_seqlens": fixed(pa.int32(), max_segments + 1),
        "num_segments": pa.int32(),
        "num_examples": pa.int32(),
        "example_ids": fixed(pa.int64(), max_segments),
        "num_supervised": pa.int32(),
        "sum_sq_len": pa.int64(),
    }
    version = format_version(weighted=weighted)
    metadata = {"format_version": version, "capacity": capacity, "max_segments": max_segments}
    if align > 1:
        columns["example_lens"] = fixed(pa.int32(), max_segments)
        metadata["align"] = align
    if weighted:
        columns["loss_weights"] = fixed(pa.float32(), capacity)
    return pa.schema(
        [pa.field(name, kind, nullable=False) for name, kind in columns.items()],
        metadata={key: str(value) for key, value in metadata.items()},
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class RowBatch:
    """n rows, column by column.

    input_ids int32 [n, C] · loss_mask bool [n, C] · position_ids uint16 or int32 [n, C] · cu_seqlens int32 [n, S+1] ·
    num_segments, num_examples, num_supervised int32 [n] · example_ids int64 [n, S] · sum_sq_len int64 [n] · example_lens int32 [n, S], where examples
    are aligned · loss_weights float32 [n, C], in a build where targets have them.
    """

    input_ids: Int32Array
    loss_mask: BoolArray
    position_ids: NDArray[np.uint16] | Int32Array
    cu_seqlens: Int32Array
    num_segments: Int32Array
    num_examples: Int32Array
    example_ids: Int64Array
    num_supervised: Int32Array
    sum_sq_len: Int64Array
    example_lens: Int32Array | None = None
    loss_weights: Float32Array | None = None

    def __len__(self) -> int:
        return len(self.input_ids)

    def take(self, rows: Int64Array | slice) -> RowBatch:
        """Some of the rows, by their places: int64 [m] copies them, a slice does not."""
        columns = {column.name: getattr(self, column.name) for column in fields(self)}
        return RowBatch(**{name: values[rows] for name, values in columns.items() if values is not None})


def broken_rule(batch: RowBatch, *, pad_id: int, vocab_size: int, align: int = 1) -> tuple[int, str] | None:
    """The first row (its place in the batch) that breaks a rule of the format, and the rule; None where all hold."""
    return next(iter(broken_rules(batch, pad_id=pad_id, vocab_size=vocab_size, align=align)), None)


def broken_rules(batch: RowBatch, *, pad_id: int, vocab_size: int, align: int = 1) -> list[tuple[int, str]]:
    """Every (row, rule) that is broken, row its place in the batch: boundaries first, since the other rules are looked for between them; a row whose
    boundaries are broken is not looked at further.
    """
    found = broken_boundaries(batch.cu_seqlens, batch.num_segments, capacity=batch.input_ids.shape[1])
    if not found:
        return _broken_contents(batch, pad_id=pad_id, vocab_size=vocab_size, align=align)
    sound = np.setdiff1d(np.arange(len(batch)), [row for row, _ in found])
    inside = _broken_contents(batch.take(sound), pad_id=pad_id, vocab_size=vocab_size, align=align)
    return found + [(int(sound[row]), rule) for row, rule in inside]


def broken_boundaries(cu: Int32Array, used: Int32Array, *, capacity: int) -> list[tuple[int, str]]:
    """Every (row, rule) broken among the rules of `cu_seqlens` [n, S+1] and `num_segments` [n]."""
    max_segments = cu.shape[1] - 1
    live = np.arange(max_segments) < used[:, None]
    rises = cu[:, 1:] > cu[:, :-1]
    last = cu[np.arange(len(cu)), np.clip(used, 0, max_segments)]
    return _named(
        ("num_segments must be between 1 and max_segments", (used < 1) | (used > max_segments)),
        ("cu_seqlens must start at 0", cu[:, 0] != 0),
        ("cu_seqlens must increase strictly over the segments in use", np.any(live & ~rises, axis=1)),
        ("cu_seqlens must reach the capacity at the last segment in use", last != capacity),
        (
            "cu_seqlens must repeat the capacity past the segments in use",
            np.any(~live & (cu[:, 1:] != capacity), axis=1),
        ),
    )


def _broken_contents(batch: RowBatch, *, pad_id: int, vocab_size: int, align: int) -> list[tuple[int, str]]:
    """What lies between sound boundaries. Whole-row arrays are gone over in their own type, once each: that is what makes it fast."""
    rows, max_segments = batch.example_ids.shape
    cu, used, ids, mask = batch.cu_seqlens, batch.num_segments, batch.input_ids, batch.loss_mask
    place = np.arange(max_segments)
    live = place < used[:, None]
    is_tail = live & (batch.example_ids < 0)
    lengths = np.where(live & ~is_tail, np.diff(cu), 0).astype(np.int64)
    row_of, segment = np.nonzero(live)
    starts = cu[row_of, segment]

    # Positions that are 0 where a segment starts and go up by one everywhere else are right; a uint16 that wraps around would have to come by 65535.
    positions = batch.position_ids
    jumps = positions[:, 1:] != positions[:, :-1] + positions.dtype.type(1)
    inner = starts > 0
    jumps[row_of[inner], starts[inner] - 1] = False
    late = np.zeros((rows, max_segments), dtype=bool)
    late[row_of, segment] = positions[row_of, starts] != 0
    first_target = np.zeros((rows, max_segments), dtype=bool)
    first_target[row_of, segment] = mask[row_of, starts]
    # At most one tail a row where all is well, and few rows have one.
    tail_target, tail_token = np.zeros(rows, dtype=bool), np.zeros(rows, dtype=bool)
    for row, tail in np.argwhere(is_tail).tolist():
        slots = slice(int(cu[row, tail]), int(cu[row, tail + 1]))
        tail_target[row] |= mask[row, slots].any()
        tail_token[row] |= (ids[row, slots] != pad_id).any()
    targets = np.array([np.count_nonzero(row) for row in mask], dtype=np.int64)
    # Seen as unsigned, a negative id is a very large one.
    highest = ids.view(np.uint32).max(axis=1) if rows else np.zeros(0, dtype=np.uint32)
    return _named(
        ("only the last segment may be a pad tail", np.any(is_tail & (place != used[:, None] - 1), axis=1)),
        ("example_ids must be -1 for the pad tail", np.any(live & (batch.example_ids < -1), axis=1)),
        ("position_ids must restart at 0 in each segment", np.any(jumps, axis=1) | np.any(late, axis=1)),
        ("loss_mask must be false on every segment's first token", np.any(first_target, axis=1)),
        ("loss_mask must be false on the pad tail", tail_target),
        ("the pad tail must hold the pad id", tail_token),
        ("example_ids must be -1 past the segments in use", np.any(~live & (batch.example_ids != -1), axis=1)),
        ("num_examples must be the segments less the pad tail", batch.num_examples != used - is_tail.sum(axis=1)),
        ("num_supervised must count the loss mask", batch.num_supervised != targets),
        ("sum_sq_len must be the sum of squared example lengths", batch.sum_sq_len != (lengths**2).sum(axis=1)),
        ("token ids must lie in the vocabulary", highest >= vocab_size),
        *_alignment(batch, align, live, pad_id),
        *_weights(batch),
    )


def _named(*rules: tuple[str, BoolArray]) -> list[tuple[int, str]]:
    return [(row, rule) for rule, broken in rules for row in np.flatnonzero(broken).tolist()]


def _weights(batch: RowBatch) -> Iterator[tuple[str, BoolArray]]:
    """The rules of `loss_weights`, each with the rows that break it [n]; none where there are none."""
    if batch.loss_weights is None:
        return
    rules = (
        ("loss_weights must be from 0.000001 to 1000 on targets", batch.loss_mask),
        ("loss_weights must be 0 where the loss mask is false", ~batch.loss_mask),
    )
    wrong = wrong_weights(batch.loss_weights, batch.loss_mask)
    for rule, where in rules:
        yield rule, np.any(wrong & where, axis=1)


def wrong_weights(weights: Float32Array, mask: BoolArray) -> BoolArray:
    """Which weights cannot be: on a target one that is not finite or out of bounds, elsewhere one that is not 0."""
    low, high = np.float32(LEAST_LOSS_WEIGHT), np.float32(MOST_LOSS_WEIGHT)
    wrong: BoolArray = np.where(mask, ~((weights >= low) & (weights <= high)), weights != 0)
    return wrong


def _alignment(batch: RowBatch, align: int, live: BoolArray, pad_id: int) -> Iterator[tuple[str, BoolArray]]:
    """The rules of `example_lens`, each with the rows that break it [n]; none where examples are not aligned. live bool [n, S]: segments in use."""
    own = batch.example_lens
    if own is None:
        if align > 1:
            yield "example_lens must be there where examples are aligned", np.ones(len(batch), dtype=bool)
        return

    def rows(broken: BoolArray) -> BoolArray:
        found: BoolArray = np.logical_or.reduce(broken, axis=1)
        return found

    lengths = np.diff(batch.cu_seqlens)
    starts = batch.cu_seqlens[:, :-1]
    offsets = np.arange(batch.input_ids.size).reshape(batch.input_ids.shape) % batch.input_ids.shape[1]
    offsets = offsets - np.repeat(starts[live], lengths[live]).reshape(offsets.shape)
    examples = live & (batch.example_ids >= 0)
    rounded = -(-own.astype(np.int64) // align) * align
    yield (
        "example_lens, rounded up to the alignment, must be the lengths of the examples' segments",
        rows(examples & ((own < 1) | (rounded != lengths))),
    )
    yield "example_lens must be 0 for the pad tail and past the segments in use", rows(~examples & (own != 0))
    padding = offsets >= np.repeat(own[live], lengths[live]).reshape(offsets.shape)
    yield "alignment padding must hold the pad id", rows(padding & (batch.input_ids != pad_id))
    yield "loss_mask must be false on alignment padding", rows(padding & batch.loss_mask)
