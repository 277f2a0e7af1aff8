"""Which examples lie in which row: the plan, made from lengths alone over the whole corpus, before a token is moved.

What a plan costs depends on the number of distinct lengths, not of examples: the work is done on counts of equal lengths and on ranges of equal
rows, and examples get their places at the end by one stable sort.

    >>> plan = make_plan(np.array([40, 30, 34, 24]), capacity=64, max_segments=0)
    >>> len(plan), sorted(len(plan.row(r)) for r in range(len(plan)))
    (2, [2, 2])
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import get_args

import numpy as np

from packer.exact_fill import LIMIT_MATTERS, Group, exact_fill
from packer.heuristics import Places, best_fit_decreasing, first_fit_decreasing, next_fit
from packer.order import permutation
from packer.schema import SEGMENTS_MULTIPLE
from packer.types import Int64Array
from packer.words import Strategy

# Rows of examples in the order given are not crowded; should they be, this many is where the next row begins.
_SEQUENTIAL_LIMIT = 63
# `auto` gives up at most this much density for a small number of segments a row: one row in a thousand.
_AUTO_COST = 1000
# What the settings of an exact fill, or best-fit beside it, can make up for: measured under 1 %. A limit that misses by more is not tried again.
_GIVE_UP = 50
# Examples that get their places at a time: what that needs besides the plan itself then stays under 20 MB.
_AT_A_TIME = 1 << 18


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
        """int64: the examples of a row, in their order."""
        return self.members[self.offsets[row] : self.offsets[row + 1]]


def make_plan(
    lengths: np.ndarray,
    *,
    capacity: int,
    max_segments: int | None = None,
    align: int = 1,
    strategy: Strategy = "optimal",
    seed: int = 0,
) -> Plan:
    """Plans rows of `capacity` tokens for examples of these lengths (any integer array [N], each from 1 to the capacity).

    max_segments: the most examples a row may hold (the pad tail not counted); 0: no limit; None: the first limit found to cost no more than one
    row in a thousand, such that limit and pad tail together are a multiple of 8. align: every example begins at a multiple of so many slots (a
    divisor of the capacity), so each takes its length rounded up to one. Rows come in an order drawn by `seed`. strategy:

    - "optimal": rows filled to the last token (`packer.exact_fill`), or best-fit decreasing where that needs fewer rows: never more than "bfd"
    - "bfd": best-fit decreasing, the longest example first, each into the row with the least room that is enough for it
    - "ffd": first-fit decreasing, the longest example first, each into the first row with room for it
    - "sequential": next-fit, in the order given, a new row where the next example does not fit the last (None: at most 63 examples a row)

    The sources of the last three stand in `packer.heuristics`. Raises ValueError for values out of range.
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
    if align < 1 or capacity % align:
        raise ValueError(f"align must divide the capacity ({capacity}), got {align}")
    if lengths.dtype not in (np.int32, np.int64):
        # The capacity does not fit every integer type, and counting takes no uint64.
        lengths = lengths.astype(np.int64)
    if align > 1:
        # In units of `align` slots the examples are whole numbers again, and nothing below need know.
        lengths, capacity = (lengths - 1) // align + 1, capacity // align
    if strategy == "sequential":
        limit = _SEQUENTIAL_LIMIT if max_segments is None else max_segments
        counts = next_fit(lengths, capacity=capacity, limit=limit)
        first = np.cumsum(counts) - counts
        used = np.add.reduceat(lengths, first, dtype=np.int64) if len(counts) else counts
        order = permutation(len(counts), seed)
        offsets = _offsets(counts[order])
        members = np.repeat(first[order] - offsets[:-1], counts[order]) + np.arange(len(lengths))
    else:
        histogram = np.bincount(lengths, minlength=1).astype(np.int64)
        limit, places = _places(histogram, capacity, max_segments, strategy)
        offsets, members, counts, used = _numbered(lengths, places, capacity, seed)
    needed = limit + 1 if limit else int((counts + (used < capacity)).max(initial=1))
    return Plan(offsets=offsets, members=members, max_segments=_segments(needed - 1))


def lower_bound(lengths: np.ndarray, capacity: int, *, align: int = 1) -> int:
    """The fewest rows any plan can need: by the sum of tokens, and by how many examples longer than C/(k+1) can share a row (k of them).

    lengths: int [N], each from 1 to the capacity. align: as in `make_plan`.
    """
    histogram = np.bincount(np.asarray(lengths), minlength=1).astype(np.int64)
    if align > 1:
        units = np.zeros(-(-len(histogram) // align) + 1, dtype=np.int64)
        np.add.at(units, -(-np.arange(len(histogram)) // align), histogram)
        histogram, capacity = units, capacity // align
    return _bound(histogram, capacity)


def _bound(histogram: Int64Array, capacity: int) -> int:
    by_tokens = -(-int(histogram @ np.arange(len(histogram))) // capacity)
    return max(by_tokens, *(-(-int(histogram[capacity // (k + 1) + 1 :].sum()) // k) for k in range(1, 17)))


def _places(histogram: Int64Array, capacity: int, limit: int | None, strategy: Strategy) -> tuple[int, list[Places]]:
    """The limit that holds, and places for every example; limit None: the first 8k - 1 that needs at most 1.001 times the rows of no limit.

    It always ends. The limits tried are a finite range, because nothing says that any of them needs few enough rows: an exact fill under a limit
    depends on that limit, so it can need more rows under each of them than without one. Where all fail, the plan without a limit is the answer:
    under the smallest 8k - 1 that its fullest row keeps to, it is a plan with that limit, and its rows are not too many by definition.
    """
    if limit is not None:
        return limit, _with_limit(histogram, capacity, limit, strategy)
    free = _with_limit(histogram, capacity, 0, strategy)
    allowed = _row_count(free) * (_AUTO_COST + 1) // _AUTO_COST
    most = max((each + before for *_, each, before in free), default=0)
    # Rows of fewer places than this would be too many even if every place were taken.
    first = _segments(-(-int(histogram.sum()) // max(allowed, 1)))
    # Up to `LIMIT_MATTERS` an exact fill chooses its settings by the limit, so a higher one can do better even where `most` is lower.
    for segments in range(first, _segments(max(most, LIMIT_MATTERS)) + 1, SEGMENTS_MULTIPLE):
        give_up_above = allowed + allowed // _GIVE_UP
        places = _with_limit(histogram, capacity, segments - 1, strategy, give_up_above=give_up_above)
        if _row_count(places) <= allowed:
            return segments - 1, places
    limit = _segments(most) - 1
    return limit, min(free, best_fit_decreasing(histogram, capacity=capacity, limit=limit), key=_row_count)


def _segments(examples: int) -> int:
    """The smallest multiple of 8 that holds so many examples and a pad tail."""
    return -(-(examples + 1) // SEGMENTS_MULTIPLE) * SEGMENTS_MULTIPLE


def _with_limit(
    histogram: Int64Array, capacity: int, limit: int, strategy: Strategy, *, give_up_above: int = 0
) -> list[Places]:
    """Places under a limit of examples a row (0: none); not the best there are where they need more than `give_up_above` rows (0: any number)."""
    if strategy == "bfd":
        return best_fit_decreasing(histogram, capacity=capacity, limit=limit)
    if strategy == "ffd":
        return first_fit_decreasing(histogram, capacity=capacity, limit=limit)
    bound = max(_bound(histogram, capacity), -(-int(histogram.sum()) // limit) if limit else 0)
    places = _as_places(exact_fill(histogram, capacity=capacity, limit=limit, bound=bound, give_up_above=give_up_above))
    rows = _row_count(places)
    if rows > bound and not 0 < give_up_above < rows:
        best_fit = best_fit_decreasing(histogram, capacity=capacity, limit=limit)
        if _row_count(best_fit) < rows:
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


def _offsets(counts: Int64Array) -> Int64Array:
    return np.concatenate([[0], np.cumsum(counts)])


def _numbered(
    lengths: np.ndarray, places: list[Places], capacity: int, seed: int
) -> tuple[Int64Array, Int64Array, Int64Array, Int64Array]:
    """(offsets, members) of the rows in the order that the seed draws; (examples, tokens) a row, in the order of the places.

    The k-th example of a length takes the k-th place for that length, in the order of rows before the draw. Besides the result and its sort only
    a small part of the places is spread out at a time.
    """
    rows = _row_count(places)
    table = np.array(places, dtype=np.int64).reshape(-1, 5)
    counts, used = (_over_rows(table, values, rows) for values in (table[:, 3], table[:, 3] * table[:, 2]))
    order = permutation(rows, seed)
    offsets = _offsets(counts[order])
    start = np.empty(rows, dtype=np.int64)
    start[order] = offsets[:-1]
    # A stable sort of 16 bits is a radix sort, several times faster than one of 64.
    key = (capacity - lengths).astype(np.uint16 if capacity < 1 << 16 else np.uint32)
    by_length = np.argsort(key, kind="stable")
    del key
    members = np.empty(len(lengths), dtype=np.int64)
    table = table[np.lexsort((table[:, 0], -table[:, 2]))]
    ends = np.cumsum((table[:, 1] - table[:, 0]) * table[:, 3])
    cuts = np.searchsorted(ends, np.arange(0, len(lengths), _AT_A_TIME)).tolist()
    at = 0
    for low, high in pairwise([*cuts, len(table)]):
        if low < high:
            place = _spread(table[low:high], start)
            members[place] = by_length[at : at + len(place)]
            at += len(place)
    return offsets, members, counts, used


def _over_rows(table: Int64Array, values: Int64Array, rows: int) -> Int64Array:
    """The sum of the values of all places a row lies in: int64 [rows]."""
    change = np.zeros(rows + 1, dtype=np.int64)
    np.add.at(change, table[:, 0], values)
    np.subtract.at(change, table[:, 1], values)
    return np.cumsum(change[:-1])


def _spread(table: Int64Array, start: Int64Array) -> Int64Array:
    """Where the examples of these places go among the members, in the order of places and rows: one entry a row of each, then one an example."""
    firsts, ends, _, each, before = table.T
    sizes = ends - firsts
    row = np.repeat(firsts - (np.cumsum(sizes) - sizes), sizes)
    row += np.arange(len(row))
    first: Int64Array = start[row]
    first += np.repeat(before, sizes)
    if each.max() == 1:
        return first
    each = np.repeat(each, sizes)
    place: Int64Array = np.repeat(first - (np.cumsum(each) - each), each)
    place += np.arange(len(place))
    return place
