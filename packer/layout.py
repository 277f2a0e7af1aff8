"""How examples lie in a row: pure functions from token arrays to the columns of a shard.

>>> tokens = Placed(counts=np.array([1]), example_ids=np.array([7]), lengths=np.array([3]),
...                 ids=np.arange(3, dtype=np.int32), loss_mask=np.array([False, True, True]))
>>> batch = lay_out(tokens, capacity=64, max_segments=8, pad_id=0)
>>> batch.cu_seqlens[0].tolist(), batch.example_ids[0].tolist()[:2]
([0, 3, 64, 64, 64, 64, 64, 64, 64], [7, -1])

Nothing here is done an example at a time: rows of many short examples cost what rows of few long ones do.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from packer.schema import RowBatch, position_dtype
from packer.types import BoolArray, Float32Array, Int32Array, Int64Array


@dataclass(frozen=True, kw_only=True, slots=True)
class Placed:
    """What goes into R rows, example behind example.

    counts int64 [R]: examples of each row. example_ids, lengths int64 [N]: of each example. ids int32 [T], loss_mask bool [T]: the tokens of all of
    them, T the sum of the lengths. loss_weights float32 [T]: 0 where nothing is a target; None in a build in which every target counts 1.
    """

    counts: Int64Array
    example_ids: Int64Array
    lengths: Int64Array
    ids: Int32Array
    loss_mask: BoolArray
    loss_weights: Float32Array | None = None


def lay_out(placed: Placed, *, capacity: int, max_segments: int, pad_id: int, align: int = 1) -> RowBatch:
    """Lays each row's examples one behind the other from slot 0; what is left over is one pad tail, a segment of its own.

    The first token of an example is never a target: nothing stands before it. With an alignment above 1 each segment is filled up with pads to a multiple
    of it, behind the example's last token, so that the next begins at one. Raises ValueError where a row's examples do not fit its capacity or its
    segments.
    """
    counts, lengths = placed.counts, placed.lengths.astype(np.int64)
    rows = len(counts)
    row = np.repeat(np.arange(rows), counts)
    # Of each example: its place in its row, and its end there.
    place = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
    slots_taken = -(-lengths // align) * align
    end = np.cumsum(slots_taken)
    used = np.bincount(row, weights=slots_taken, minlength=rows).astype(np.int64)
    end -= np.repeat(np.cumsum(used) - used, counts)
    tail = used < capacity
    _refuse(counts, lengths, row, used, counts + tail, capacity, max_segments)

    filled = _filled(row, end - slots_taken, lengths, used, capacity, align)
    input_ids = np.full((rows, capacity), pad_id, dtype=np.int32)
    input_ids[filled] = placed.ids
    loss_mask = np.zeros((rows, capacity), dtype=bool)
    loss_mask[filled] = placed.loss_mask
    loss_mask[row, end - slots_taken] = False
    loss_weights = None
    if placed.loss_weights is not None:
        loss_weights = np.zeros((rows, capacity), dtype=np.float32)
        loss_weights[filled] = placed.loss_weights
        loss_weights[row, end - slots_taken] = 0

    cu_seqlens = np.full((rows, max_segments + 1), capacity, dtype=np.int32)
    cu_seqlens[:, 0] = 0
    cu_seqlens[row, place + 1] = end
    example_ids = np.full((rows, max_segments), -1, dtype=np.int64)
    example_ids[row, place] = placed.example_ids
    example_lens = None
    if align > 1:
        example_lens = np.zeros((rows, max_segments), dtype=np.int32)
        example_lens[row, place] = lengths
    return RowBatch(
        input_ids=input_ids,
        loss_mask=loss_mask,
        position_ids=_distances(cu_seqlens, capacity),
        cu_seqlens=cu_seqlens,
        num_segments=(counts + tail).astype(np.int32),
        num_examples=counts.astype(np.int32),
        example_ids=example_ids,
        num_supervised=loss_mask.sum(axis=1).astype(np.int32),
        sum_sq_len=_sums(slots_taken**2, counts),
        example_lens=example_lens,
        loss_weights=loss_weights,
    )


def _filled(
    row: Int64Array, start: Int64Array, lengths: Int64Array, used: Int64Array, capacity: int, align: int
) -> BoolArray:
    """bool [R, C]: the slots that hold a token of an example, which begins at `start` in its row."""
    if align == 1:
        packed: BoolArray = np.arange(capacity, dtype=np.int32) < used[:, None]
        return packed
    filled = np.zeros(len(used) * capacity, dtype=bool)
    shift = row * capacity + start - (np.cumsum(lengths) - lengths)
    filled[np.repeat(shift, lengths) + np.arange(int(lengths.sum()))] = True
    return filled.reshape(len(used), capacity)


def _distances(cu_seqlens: Int32Array, capacity: int) -> NDArray[np.uint16] | Int32Array:
    """Each slot's distance from the start of its segment; the pad tail's from its own."""
    starts = np.repeat(cu_seqlens[:, :-1].reshape(-1), np.diff(cu_seqlens, axis=1).reshape(-1))
    distances = np.arange(capacity, dtype=np.int32) - starts.reshape(-1, capacity)
    return distances.astype(np.uint16) if position_dtype(capacity) == np.uint16 else distances


def _sums(values: Int64Array, counts: Int64Array) -> Int64Array:
    """The sum over each row's examples, exactly (weighted `bincount` sums in float64)."""
    totals: Int64Array = np.concatenate([[0], np.cumsum(values)])
    ends = np.cumsum(counts)
    sums: Int64Array = totals[ends] - totals[ends - counts]
    return sums


def _refuse(
    counts: Int64Array,
    lengths: Int64Array,
    row: Int64Array,
    used: Int64Array,
    segments: Int64Array,
    capacity: int,
    max_segments: int,
) -> None:
    """Raises ValueError for the first row that does not fit."""
    for broken, why in (
        (np.isin(np.arange(len(counts)), row[lengths < 1]), "an example has no token"),
        ((used > capacity) | (counts > max_segments), f"do not fit {capacity} slots and {max_segments} segments"),
        (segments > max_segments, "no segment left for the pad tail"),
    ):
        if broken.any():
            first = int(broken.argmax())
            raise ValueError(f"row {first}: {int(counts[first])} examples: {why}")
