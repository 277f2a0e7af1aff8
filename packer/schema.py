"""The columns of a shard and the rules they obey, written down once for the writer, the reader and the checks.

`shard_schema` is the Arrow schema; `broken_rule` holds a batch of rows against every rule of `packer/FORMAT.md` that can be seen without the
tokenizer, vectorised over the batch, so that it is cheap enough to run on everything written and everything read.

    >>> shard_schema(capacity=64, max_segments=8).field("cu_seqlens").type
    FixedSizeListType(fixed_size_list<item: int32 not null>[9])
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.types import BoolArray, Int32Array, Int64Array

FORMAT_VERSION = 1
ROWS_PER_BATCH = 16
CAPACITY_MULTIPLE = 64
SEGMENTS_MULTIPLE = 8
_UINT16_CAPACITY = 65536


def position_dtype(capacity: int) -> np.dtype[np.uint16] | np.dtype[np.int32]:
    """uint16 as long as every position of a row of this capacity fits it, else int32."""
    return np.dtype(np.uint16) if capacity <= _UINT16_CAPACITY else np.dtype(np.int32)


def shard_schema(*, capacity: int, max_segments: int, align: int = 1) -> pa.Schema:
    """The Arrow schema of a shard, C and S in its metadata; with an alignment above 1 that too, and the column `example_lens`."""

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
    metadata = {"format_version": FORMAT_VERSION, "capacity": capacity, "max_segments": max_segments}
    if align > 1:
        columns["example_lens"] = fixed(pa.int32(), max_segments)
        metadata["align"] = align
    return pa.schema(
        [pa.field(name, kind, nullable=False) for name, kind in columns.items()],
        metadata={key: str(value) for key, value in metadata.items()},
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class RowBatch:
    """n rows, column by column.

    input_ids int32 [n, C] · loss_mask bool [n, C] · position_ids uint16 or int32 [n, C] · cu_seqlens int32 [n, S+1] ·
    num_segments, num_examples, num_supervised int32 [n] · example_ids int64 [n, S] · sum_sq_len int64 [n] · example_lens int32 [n, S], where examples
    are aligned.
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

    def __len__(self) -> int:
        return len(self.input_ids)


def broken_rule(batch: RowBatch, *, pad_id: int, vocab_size: int, align: int = 1) -> tuple[int, str] | None:
    """The first row (its place in the batch) that breaks a rule of the format, and the rule; None where all hold."""
    rows, capacity = batch.input_ids.shape
    max_segments = batch.cu_seqlens.shape[1] - 1
    cu, used = batch.cu_seqlens, batch.num_segments
    place = np.arange(max_segments)
    live = place < used[:, None]
    wide = cu.astype(np.int64)
    lengths = wide[:, 1:] - wide[:, :-1]
    at = np.arange(rows)

    # The boundaries come first: what follows indexes by them.
    for rule, broken in (
        ("num_segments must be between 1 and max_segments", (used < 1) | (used > max_segments)),
        ("cu_seqlens must start at 0", cu[:, 0] != 0),
        ("cu_seqlens must increase strictly over the segments in use", (live & (lengths < 1)).any(axis=1)),
        (
            "cu_seqlens must reach the capacity at the last segment in use",
            cu[at, np.clip(used, 0, max_segments)] != capacity,
        ),
        ("cu_seqlens must repeat the capacity past the segments in use", (~live & (cu[:, 1:] != capacity)).any(axis=1)),
    ):
        if broken.any():
            return int(broken.argmax()), rule

    flat_lengths = lengths[live]
    starts = cu[:, :-1][live] + np.repeat(at * capacity, used)
    expected = np.arange(rows * capacity) - np.repeat(starts, flat_lengths)
    is_tail = live & (batch.example_ids < 0)
    tail_start = np.where(is_tail, cu[:, :-1], capacity).min(axis=1)
    in_tail = np.arange(capacity) >= tail_start[:, None]
    example_lengths = np.where(live & ~is_tail, lengths, 0)
    first_tokens = np.zeros(rows * capacity, dtype=bool)
    first_tokens[starts] = True
    ids = batch.input_ids
    for rule, broken in (
        ("only the last segment may be a pad tail", (is_tail & (place != used[:, None] - 1)).any(axis=1)),
        (
            "position_ids must restart at 0 in each segment",
            (batch.position_ids != expected.reshape(rows, capacity)).any(axis=1),
        ),
        (
            "loss_mask must be false on every segment's first token",
            (batch.loss_mask & first_tokens.reshape(rows, capacity)).any(axis=1),
        ),
        ("loss_mask must be false on the pad tail", (batch.loss_mask & in_tail).any(axis=1)),
        ("the pad tail must hold the pad id", (in_tail & (ids != pad_id)).any(axis=1)),
        ("example_ids must be -1 past the segments in use", (~live & (batch.example_ids != -1)).any(axis=1)),
        ("num_examples must be the segments less the pad tail", batch.num_examples != used - is_tail.sum(axis=1)),
        ("num_supervised must count the loss mask", batch.num_supervised != batch.loss_mask.sum(axis=1)),
        ("sum_sq_len must be the sum of squared example lengths", batch.sum_sq_len != (example_lengths**2).sum(axis=1)),
        ("token ids must lie in the vocabulary", ((ids < 0) | (ids >= vocab_size)).any(axis=1)),
        *_alignment(batch, align, live, lengths, expected.reshape(rows, capacity), pad_id),
    ):
        if broken.any():
            return int(broken.argmax()), rule
    return None


def _alignment(
    batch: RowBatch, align: int, live: BoolArray, lengths: Int64Array, offsets: Int64Array, pad_id: int
) -> Iterator[tuple[str, BoolArray]]:
    """The rules of `example_lens`, each with the rows that break it [n]; none where examples are not aligned.

    live bool, lengths int64 [n, S]: segments in use, and their slots. offsets int64 [n, C]: each slot's place in its segment.
    """
    own = batch.example_lens
    if own is None:
        if align > 1:
            yield "example_lens must be there where examples are aligned", np.ones(len(batch), dtype=bool)
        return

    def rows(broken: BoolArray) -> BoolArray:
        found: BoolArray = np.logical_or.reduce(broken, axis=1)
        return found

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
