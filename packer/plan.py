"""Which examples lie in which row: the plan, made from lengths alone over the whole corpus, before a token is moved.

What a plan costs depends on the number of distinct lengths, not of examples: the work is done on counts of equal lengths and on ranges of equal
rows, and examples get their places at the end by one stable sort.

    >>> plan = make_plan(np.array([40, 30, 34, 24]), capacity=64, max_segments=0)
    >>> len(plan), sorted(len(plan.row(r)) for r in range(len(plan)))
    (2, [2, 2])
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from packer.order import permutation
from packer.schema import SEGMENTS_MULTIPLE
from packer.types import Int64Array

Strategy = Literal["bfd", "sequential"]
# `auto` gives up at most this much density for a small number of segments a row: one row in a thousand.
_AUTO_COST = 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """offsets int64 [R+1], members int64 [N]: row r holds examples members[offsets[r]:offsets[r+1]], each example exactly once.

    max_segments: S, what every row fits into with its pad tail counted, a multiple of 8.
    """

    offsets: Int64Array
    members: Int64Array
    max_segments: int

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def row(self, row: int) -> Int64Array:
        return self.members[self.offsets[row] : self.offsets[row + 1]]


def make_plan(
    lengths: np.ndarray,
    *,
    capacity: int,
    max_segments: int | None = None,
    strategy: Strategy = "bfd",
    seed: int = 0,
) -> Plan:
    """Plans rows of `capacity` tokens for examples of these lengths (any integer array [N], each from 1 to the capacity).

    max_segments: the most examples a row may hold (the pad tail not counted); 0: no limit; None: the smallest limit that costs no more than one row
    in a thousand, such that limit and pad tail together are a multiple of 8. strategy: "bfd" (best-fit decreasing: the longest example first, each
    into the row with the least room that is enough for it; D. S. Johnson, "Near-optimal bin packing algorithms", 1973) or "sequential" (in the
    order given, a new row when the next does not fit). Rows come in an order drawn by `seed`. Raises ValueError for lengths out of range.
    """
    lengths = np.asarray(lengths, dtype=np.int64)
    if len(lengths) and (lengths.min() < 1 or lengths.max() > capacity):
        raise ValueError(f"lengths must be from 1 to the capacity ({capacity}), got {lengths.min()} to {lengths.max()}")
    if max_segments is not None and max_segments < 0:
        raise ValueError(f"max_segments must be 0 (no limit) or more, got {max_segments}")
    if max_segments is None:
        max_segments = _auto_limit(lengths, capacity, strategy)
    row_of = _rows(lengths, capacity, max_segments, strategy)
    rows = int(row_of.max(initial=-1)) + 1
    row_of = permutation(rows, seed)[row_of]
    members = np.argsort(row_of, kind="stable")
    offsets = np.concatenate([[0], np.cumsum(np.bincount(row_of, minlength=rows))]).astype(np.int64)
    return Plan(
        offsets=offsets,
        members=members,
        max_segments=_segments_needed(lengths, capacity, max_segments, offsets, members),
    )


def lower_bound(lengths: np.ndarray, capacity: int) -> int:
    """The fewest rows any plan can need: by the sum of tokens, and by how many examples longer than C/(k+1) can share a row (k of them)."""
    lengths = np.asarray(lengths, dtype=np.int64)
    by_tokens = -(-int(lengths.sum()) // capacity)
    return max(by_tokens, *(-(-int((lengths > capacity // (k + 1)).sum()) // k) for k in range(1, 17)))


def _segments_needed(lengths: Int64Array, capacity: int, limit: int, offsets: Int64Array, members: Int64Array) -> int:
    if limit:
        needed = limit + 1
    else:
        counts = np.diff(offsets)
        used = np.add.reduceat(lengths[members], offsets[:-1]) if len(members) else np.zeros(0, dtype=np.int64)
        needed = int((counts + (used < capacity)).max(initial=1))
    return -(-needed // SEGMENTS_MULTIPLE) * SEGMENTS_MULTIPLE


def _auto_limit(lengths: Int64Array, capacity: int, strategy: Strategy) -> int:
    """The smallest 8k - 1 examples a row that needs at most 1.001 times the rows of no limit (bisection over k)."""
    if not len(lengths):
        return SEGMENTS_MULTIPLE - 1
    free = _rows(lengths, capacity, 0, strategy)
    allowed = int(free.max() + 1) * (_AUTO_COST + 1) // _AUTO_COST
    most = int(np.bincount(free).max())
    low, high = 1, -(-(most + 1) // SEGMENTS_MULTIPLE)
    while low < high:
        middle = (low + high) // 2
        rows = int(_rows(lengths, capacity, middle * SEGMENTS_MULTIPLE - 1, strategy).max()) + 1
        low, high = (low, middle) if rows <= allowed else (middle + 1, high)
    return low * SEGMENTS_MULTIPLE - 1


def _rows(lengths: Int64Array, capacity: int, limit: int, strategy: Strategy) -> Int64Array:
    """The row of each example, int64 [N], rows numbered from 0."""
    if strategy == "sequential":
        return _sequential(lengths, capacity, limit)
    placed_lengths, placed_rows = _best_fit_decreasing(np.bincount(lengths, minlength=1), capacity, limit)
    # Places and examples of equal length are matched in order: the k-th example of a length takes the k-th place for that length.
    row_of = np.empty(len(lengths), dtype=np.int64)
    row_of[np.argsort(-lengths, kind="stable")] = placed_rows
    assert len(placed_lengths) == len(lengths)
    return row_of


def _sequential(lengths: Int64Array, capacity: int, limit: int) -> Int64Array:
    row_of = np.empty(len(lengths), dtype=np.int64)
    row, used, count = -1, capacity, 0
    for example, length in enumerate(lengths.tolist()):
        if used + length > capacity or (limit and count == limit):
            row, used, count = row + 1, 0, 0
        row_of[example] = row
        used += length
        count += 1
    return row_of


def _best_fit_decreasing(histogram: Int64Array, capacity: int, limit: int) -> tuple[Int64Array, Int64Array]:
    """Best-fit decreasing on counts: (lengths, rows) of every place, lengths descending.

    Rows that are alike (same room, same number of examples) are one range of row numbers. Where the tightest row with room for a length takes one
    example, it stays the tightest for the next of that length, so a whole range is filled at once: r // L examples to a row.
    """
    limit = limit or capacity
    ranges: dict[int, list[tuple[int, int, int]]] = {}  # room → (first row, end row, examples in each), a stack
    rooms = 0  # bit r is set where some row has room r
    rows = 0
    placed: list[tuple[int, int, int, int]] = []  # (first row, end row, length, examples of it in each)

    def give_back(first: int, end: int, room: int, count: int) -> None:
        nonlocal rooms
        if end > first and room > 0 and count < limit:
            ranges.setdefault(room, []).append((first, end, count))
            rooms |= 1 << room

    for length in np.flatnonzero(histogram)[::-1].tolist():
        left = int(histogram[length])
        while left:
            fitting = rooms >> length
            if fitting:
                room = length + (fitting & -fitting).bit_length() - 1
                first, end, count = ranges[room].pop()
                if not ranges[room]:
                    del ranges[room]
                    rooms &= ~(1 << room)
            else:
                room, count = capacity, 0
                first, end = rows, rows + -(-left // min(capacity // length, limit))
                rows = end
            each = min(room // length, limit - count)
            full = min(left // each, end - first)
            rest = min(left - full * each, each - 1) if first + full < end else 0
            if full:
                placed.append((first, first + full, length, each))
                give_back(first, first + full, room - each * length, count + each)
            if rest:
                placed.append((first + full, first + full + 1, length, rest))
                give_back(first + full, first + full + 1, room - rest * length, count + rest)
            give_back(first + full + bool(rest), end, room, count)
            left -= full * each + rest
    if not placed:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    table = np.array(placed, dtype=np.int64)
    sizes = table[:, 1] - table[:, 0]
    # One entry a row of each range, then one a place in that row.
    entry = np.repeat(np.arange(len(table)), sizes)
    row = table[entry, 0] + np.arange(len(entry)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    each_of = table[entry, 3]
    return np.repeat(table[entry, 2], each_of), np.repeat(row, each_of)
