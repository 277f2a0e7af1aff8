"""Which examples lie in which row: the plan, made from lengths alone over the whole corpus, before a token is moved.

What a plan costs depends on the number of distinct lengths, not of examples: the work is done on counts of equal lengths and on ranges of equal
rows, and examples get their places at the end by one stable sort.

    >>> plan = make_plan(np.array([40, 30, 34, 24]), capacity=64, max_segments=0)
    >>> len(plan), sorted(len(plan.row(r)) for r in range(len(plan)))
    (2, [2, 2])
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from packer.exact_fill import Group, exact_fill
from packer.order import permutation
from packer.schema import SEGMENTS_MULTIPLE
from packer.types import Int64Array

Strategy = Literal["optimal", "bfd", "sequential"]
# Rows of examples in the order given are not crowded; should they be, this many is where the next row begins.
_SEQUENTIAL_LIMIT = 63
# `auto` gives up at most this much density for a small number of segments a row: one row in a thousand.
_AUTO_COST = 1000
# (first row, end row, length, how many examples of that length in each of these rows, how many examples each held before)
Places = tuple[int, int, int, int, int]


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
    strategy: Strategy = "optimal",
    seed: int = 0,
) -> Plan:
    """Plans rows of `capacity` tokens for examples of these lengths (any integer array [N], each from 1 to the capacity).

    max_segments: the most examples a row may hold (the pad tail not counted); 0: no limit; None: the smallest limit that costs no more than one row
    in a thousand, such that limit and pad tail together are a multiple of 8. strategy: "optimal" (rows filled to the last token by `packer.exact_fill`, or best-fit
    decreasing where that needs fewer rows), "bfd" (best-fit decreasing: the longest example first, each
    into the row with the least room that is enough for it; D. S. Johnson, "Near-optimal bin packing algorithms", 1973) or "sequential" (in the
    order given, a new row when the next does not fit). Rows come in an order drawn by `seed`. Raises ValueError for lengths out of range.
    """
    lengths = np.asarray(lengths)
    if strategy not in get_args(Strategy):
        raise ValueError(f"strategy must be one of {', '.join(get_args(Strategy))}, got {strategy!r}")
    if not len(lengths):
        lengths = lengths.astype(np.int64)
    if lengths.dtype.kind not in "iu":
        raise ValueError(f"lengths must be integers, got {lengths.dtype}")
    if len(lengths) and (lengths.min() < 1 or lengths.max() > capacity):
        raise ValueError(f"lengths must be from 1 to the capacity ({capacity}), got {lengths.min()} to {lengths.max()}")
    if max_segments is not None and max_segments < 0:
        raise ValueError(f"max_segments must be 0 (no limit) or more, got {max_segments}")
    if strategy == "sequential":
        limit = _SEQUENTIAL_LIMIT if max_segments is None else max_segments
        members, counts = _sequential(lengths, capacity, limit)
    else:
        histogram = np.bincount(lengths, minlength=1).astype(np.int64)
        limit, places = _places(histogram, capacity, max_segments, strategy)
        members, counts = _match(lengths, places, capacity)
    order = permutation(len(counts), seed)
    offsets = np.concatenate([[0], np.cumsum(counts[order])])
    # Row by row in their new order: each member's place among the members in the old one.
    first = np.cumsum(counts) - counts
    source = np.repeat(first[order] - offsets[:-1], counts[order]) + np.arange(len(members))
    members = members[source]
    return Plan(
        offsets=offsets,
        members=members,
        max_segments=_segments_needed(lengths, capacity, limit, offsets, members),
    )


def lower_bound(lengths: np.ndarray, capacity: int) -> int:
    """The fewest rows any plan can need: by the sum of tokens, and by how many examples longer than C/(k+1) can share a row (k of them)."""
    lengths = np.asarray(lengths, dtype=np.int64)
    by_tokens = -(-int(lengths.sum()) // capacity)
    return max(by_tokens, *(-(-int((lengths > capacity // (k + 1)).sum()) // k) for k in range(1, 17)))


def _segments_needed(lengths: np.ndarray, capacity: int, limit: int, offsets: Int64Array, members: Int64Array) -> int:
    if limit:
        needed = limit + 1
    else:
        counts = np.diff(offsets)
        used = (
            np.add.reduceat(lengths[members], offsets[:-1], dtype=np.int64)
            if len(members)
            else np.zeros(0, dtype=np.int64)
        )
        needed = int((counts + (used < capacity)).max(initial=1))
    return -(-needed // SEGMENTS_MULTIPLE) * SEGMENTS_MULTIPLE


def _places(histogram: Int64Array, capacity: int, limit: int | None, strategy: Strategy) -> tuple[int, list[Places]]:
    """The limit that holds, and places for every example; limit None: the smallest 8k - 1 that needs at most 1.001 times the rows of no limit."""
    if limit is not None:
        return limit, _with_limit(histogram, capacity, limit, strategy, enough=0)
    free = _row_count(_with_limit(histogram, capacity, 0, strategy, enough=0))
    allowed = free * (_AUTO_COST + 1) // _AUTO_COST
    examples, tokens = int(histogram.sum()), int(histogram @ np.arange(len(histogram)))
    # Fewer places than the mean of examples a row cannot do.
    segments = max(1, examples * capacity // max(tokens, 1) // SEGMENTS_MULTIPLE) * SEGMENTS_MULTIPLE
    while True:
        places = _with_limit(histogram, capacity, segments - 1, strategy, enough=allowed)
        if _row_count(places) <= allowed:
            return segments - 1, places
        segments += SEGMENTS_MULTIPLE


def _with_limit(histogram: Int64Array, capacity: int, limit: int, strategy: Strategy, *, enough: int) -> list[Places]:
    """Places under a limit of examples a row (0: none); a plan of no more than `enough` rows need not be bettered."""
    if strategy == "bfd":
        return _best_fit_decreasing(histogram, capacity, limit)
    lengths = np.flatnonzero(histogram)
    bound = lower_bound(np.repeat(lengths, histogram[lengths]), capacity) if len(lengths) else 0
    bound = max(bound, enough, -(-int(histogram.sum()) // limit) if limit else 0)
    exact = exact_fill(histogram, capacity=capacity, limit=limit, bound=bound)
    places = _as_places(exact)
    if _row_count(places) > bound:
        best_fit = _best_fit_decreasing(histogram, capacity, limit)
        if _row_count(best_fit) < _row_count(places):
            return best_fit
    return places


def _as_places(groups: list[Group]) -> list[Places]:
    places = []
    for first, end, per_row in groups:
        before = 0
        for length, each in per_row.items():
            places.append((first, end, length, each, before))
            before += each
    return places


def _row_count(places: list[Places]) -> int:
    return max((place[1] for place in places), default=0)


def _match(lengths: np.ndarray, places: list[Places], capacity: int) -> tuple[Int64Array, Int64Array]:
    """(members, examples a row): the k-th example of a length takes the k-th place for that length, in the order of rows."""
    members = np.empty(len(lengths), dtype=np.int64)
    if not places:
        return members, np.zeros(0, dtype=np.int64)
    table = np.array(places, dtype=np.int64)
    table = table[np.lexsort((table[:, 0], -table[:, 2]))]
    sizes = table[:, 1] - table[:, 0]
    # One entry a row of each range, then one a place in that row.
    entry = np.repeat(np.arange(len(table)), sizes)
    row = table[entry, 0] + np.arange(len(entry)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    each, before = table[entry, 3], table[entry, 4]
    counts = np.bincount(row, weights=each).astype(np.int64)
    start = (np.cumsum(counts) - counts)[row] + before
    del row, entry, before
    place = np.repeat(start - (np.cumsum(each) - each), each) + np.arange(len(lengths))
    # A stable sort of 16 bits is a radix sort, several times faster than one of 64.
    key = (capacity - lengths).astype(np.uint16 if capacity < 1 << 16 else np.uint32)
    members[place] = np.argsort(key, kind="stable")
    return members, counts


def _sequential(lengths: np.ndarray, capacity: int, limit: int) -> tuple[Int64Array, Int64Array]:
    counts: list[int] = []
    used, limit = capacity, limit or len(lengths)
    for length in lengths.tolist():
        if used + length > capacity or counts[-1] == limit:
            counts.append(0)
            used = 0
        counts[-1] += 1
        used += length
    return np.arange(len(lengths)), np.array(counts, dtype=np.int64)


def _best_fit_decreasing(histogram: Int64Array, capacity: int, limit: int) -> list[Places]:
    """Best-fit decreasing on counts.

    Rows that are alike (same room, same number of examples) are one range of row numbers. Where the tightest row with room for a length takes one
    example, it stays the tightest for the next of that length, so a whole range is filled at once: r // L examples to a row.
    """
    limit = limit or capacity
    ranges: dict[int, list[tuple[int, int, int]]] = {}  # room → (first row, end row, examples in each), a stack
    rooms = 0  # bit r is set where some row has room r
    rows = 0
    placed: list[Places] = []

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
                placed.append((first, first + full, length, each, count))
                give_back(first, first + full, room - each * length, count + each)
            if rest:
                placed.append((first + full, first + full + 1, length, rest, count))
                give_back(first + full, first + full + 1, room - rest * length, count + rest)
            give_back(first + full + bool(rest), end, room, count)
            left -= full * each + rest
    return placed
