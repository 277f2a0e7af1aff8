"""The textbook heuristics, on counts of equal lengths: first-fit and best-fit decreasing, and next-fit.

Rows that are alike (same room, same number of examples) are one range of row numbers, so the work depends on the number of distinct lengths and
not of examples; the outcome is that of placing one example after the other. Source of all three: D. S. Johnson, "Near-optimal bin packing
algorithms", 1973; of working on counts: Krell et al., "Efficient Sequence Packing without Cross-contamination", 2021.

    >>> best_fit_decreasing(np.bincount([40, 30, 24]), capacity=64, limit=0)
    [(0, 1, 40, 1, 0), (1, 2, 30, 1, 0), (0, 1, 24, 1, 1)]
"""

from __future__ import annotations

from heapq import heappop, heappush

import numpy as np

from packer.types import Int64Array

# (first row, end row, length, how many examples of that length in each of these rows, how many examples each held before)
Places = tuple[int, int, int, int, int]


def best_fit_decreasing(histogram: Int64Array, *, capacity: int, limit: int) -> list[Places]:
    """Best-fit decreasing: the longest example first, each into the row with the least room that is enough for it; a new row where there is none.

    histogram: int [≤ C+1], examples by length. limit: the most examples a row may hold (0: any number). Of rows with equal room the one with the
    fewest examples is taken, of those the first.
    """
    limit = limit or capacity
    # Where the tightest row with room for a length takes one example, it stays the tightest for the next of that length: a row takes
    # r // L of them at once, and a range of alike rows follows one after the other.
    ranges: dict[int, list[tuple[int, int, int]]] = {}  # room → heap of (examples in each, first row, end row)
    rooms = 0  # bit r is set where some row has room r
    rows = 0
    placed: list[Places] = []

    def give_back(first: int, end: int, room: int, count: int) -> None:
        nonlocal rooms
        if end > first and room > 0 and count < limit:
            heappush(ranges.setdefault(room, []), (count, first, end))
            rooms |= 1 << room

    for length in np.flatnonzero(histogram)[::-1].tolist():
        left = int(histogram[length])
        # Ends: the range that is found or opened has a row, with room for one example and fewer than `limit`, so every turn places at least one.
        while left:
            fitting = rooms >> length
            if fitting:
                room = length + (fitting & -fitting).bit_length() - 1
                count, first, end = heappop(ranges[room])
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


def first_fit_decreasing(histogram: Int64Array, *, capacity: int, limit: int) -> list[Places]:
    """First-fit decreasing: the longest example first, each into the first row with room for it; a new row where there is none.

    histogram: int [≤ C+1], examples by length. limit: the most examples a row may hold (0: any number).
    """
    limit = limit or capacity
    lengths = np.flatnonzero(histogram)
    rows = 0
    placed: list[Places] = []
    # Columns: first row, end row, room, examples in each; in the order of rows, those that can take no more left out.
    ranges = np.zeros((0, 4), dtype=np.int64)
    for length in lengths[::-1].tolist():
        left = int(histogram[length])
        fitting = np.flatnonzero(ranges[:, 2] >= length)
        chosen = ranges[fitting]
        # The first row that fits stays the first until it is too full, so the ranges take all they can, one after the other.
        each = np.minimum(chosen[:, 2] // length, limit - chosen[:, 3])
        taken = np.cumsum(each * (chosen[:, 1] - chosen[:, 0]))
        whole = int(np.searchsorted(taken, left, side="right"))
        parts = [(int(fitting[place]), int(each[place])) for place in range(whole)]
        for (place, count), (first, end, _, before) in zip(parts, chosen[:whole].tolist(), strict=True):
            placed.append((first, end, length, count, before))
            ranges[place, 2] -= count * length
            ranges[place, 3] += count
        left -= int(taken[whole - 1]) if whole else 0
        if left and whole < len(fitting):
            place = int(fitting[whole])
            pieces = _fill_range(ranges[place].tolist(), length, left, int(each[whole]), placed)
            ranges = np.concatenate([ranges[:place], pieces, ranges[place + 1 :]])
        elif left:
            count = min(capacity // length, limit)
            new = [rows, rows + -(-left // count), capacity, 0]
            rows = new[1]
            ranges = np.concatenate([ranges, _fill_range(new, length, left, count, placed)])
        ranges = ranges[(ranges[:, 2] >= lengths[0]) & (ranges[:, 3] < limit)]
    return placed


def _fill_range(rows: list[int], length: int, left: int, each: int, placed: list[Places]) -> Int64Array:
    """Puts `left` examples into a range that has room for them, `each` to a row; gives the ranges it falls into."""
    first, end, room, count = rows
    full, rest = divmod(left, each)
    pieces = []
    for begin, stop, number in (
        (first, first + full, each),
        (first + full, first + full + (rest > 0), rest),
        (first + full + (rest > 0), end, 0),
    ):
        if stop > begin:
            pieces.append([begin, stop, room - number * length, count + number])
            if number:
                placed.append((begin, stop, length, number, count))
    return np.array(pieces, dtype=np.int64)


def next_fit(lengths: np.ndarray, *, capacity: int, limit: int) -> Int64Array:
    """Next-fit: examples in the order given, a new row where the next does not fit the last one or that has `limit` examples (0: any number).

    lengths: int [N]. Returns the examples in each row, int64 [R].
    """
    ends = np.cumsum(lengths, dtype=np.int64)
    counts: list[int] = []
    start, used = 0, 0
    # Ends: no length is above the capacity, so every row takes at least one.
    while start < len(ends):
        end = int(np.searchsorted(ends, used + capacity, side="right"))
        end = min(end, start + limit) if limit else end
        counts.append(end - start)
        start, used = end, int(ends[end - 1])
    return np.array(counts, dtype=np.int64)
