"""Rows filled to the last token: which lengths go together, decided on counts of equal lengths.

A row that is exactly full wastes nothing, and if all rows but the last are, no plan has fewer. So each row begins with the longest example left, goes on
with the longest that still fit, and closes with one, two or three lengths that fill it to the token. Short examples are what closes rows, so they
are spared: of all closing pairs the one most alike is taken, and short ones come last. Where that would crowd too many of them into the last rows,
rows are made of both ends instead, long and short ones together, which keeps the number of examples a row where it is.

The same lengths are used for as many rows as there are examples for, so the work depends on the number of distinct lengths and not of examples. The set
of available lengths is the bits of one integer: the closing pairs (a, g - a) are an AND of the set with its mirror image.

    >>> exact_fill(np.bincount([40, 40, 24, 20, 4]), capacity=64, limit=0)
    [(0, 1, {40: 1, 24: 1}), (1, 2, {40: 1, 20: 1, 4: 1})]
"""

from __future__ import annotations

import math

import numpy as np

from packer.types import Int64Array

# Rows [first, end) each hold every length of the mapping so often.
Group = tuple[int, int, dict[int, int]]
# When rows are made of both ends: from so many examples a row on. More lets the last rows close better; fewer keeps rows with few segments. Under a limit
# it is a share of that. Whole numbers: what is left then begins with rows of one size.
_CROWDED = (40, 24, 64, 100, 16)
_SHARES = (0.9, 1.0, 0.75)
LIMIT_MATTERS = max(_CROWDED)  # the highest limit that settings are a share of
# Rows made of both ends leave examples more and more alike, which fill a row only while a whole number of them does. So rows take one more than the
# mean asks for until it has fallen to a whole number, but for this much.
_MARGINS = (0.03, 0.001, 0.003)
_THIRDS = 48  # how many longest lengths are tried as the third that closes a row


class _Supply:
    """What is left: counts by length, the set of available lengths, and its mirror image (bit C - l for length l)."""

    def __init__(self, histogram: Int64Array, capacity: int) -> None:
        lengths = np.flatnonzero(histogram).tolist()
        self.capacity = capacity
        self.counts: list[int] = histogram.tolist() + [0] * (capacity + 1 - len(histogram))
        self.available = sum(1 << length for length in lengths)
        self.mirror = sum(1 << (capacity - length) for length in lengths)
        self.examples = int(histogram.sum())
        self.tokens = int((histogram * np.arange(len(histogram))).sum())

    def take(self, length: int, count: int = 1) -> None:
        left = self.counts[length] - count
        self.counts[length] = left
        if left == 0:
            self.available ^= 1 << length
            self.mirror ^= 1 << (self.capacity - length)
        self.examples -= count
        self.tokens -= count * length

    def give_back(self, length: int) -> None:
        if self.counts[length] == 0:
            self.available |= 1 << length
            self.mirror |= 1 << (self.capacity - length)
        self.counts[length] += 1
        self.examples += 1
        self.tokens += length

    def longest(self, at_most: int) -> int:
        """The longest available length up to at_most; 0 where there is none."""
        within = self.available & ((2 << at_most) - 1)
        return within.bit_length() - 1 if within else 0

    def shortest(self) -> int:
        return (self.available & -self.available).bit_length() - 1

    def pair(self, gap: int, *, alike: bool) -> int:
        """The longer of two available lengths that add up to gap, most alike or most unlike of all such; 0 where there are none."""
        pairs = self.available & (self.mirror >> (self.capacity - gap)) & ((1 << gap) - 1)
        if gap % 2 == 0 and self.counts[gap // 2] < 2:
            pairs &= ~(1 << (gap // 2))
        if not pairs:
            return 0
        if not alike:
            return pairs.bit_length() - 1
        half = (gap + 1) // 2
        longer = pairs >> half
        return half + (longer & -longer).bit_length() - 1


def exact_fill(
    histogram: Int64Array, *, capacity: int, limit: int, bound: int = 0, give_up_above: int = 0
) -> list[Group]:
    """Groups of rows for examples counted by length (int [≤ capacity+1], histogram[0] = 0), at most `limit` examples a row (0: any number).

    Tries settings until one needs no more than `bound` rows, and gives the best; only one where that needs more than `give_up_above` rows (0: any number).
    """
    best: list[Group] = []
    for crowded, margin in _settings(limit or capacity):
        filling = _Filling(_Supply(histogram, capacity), limit or capacity, crowded, margin)
        groups = filling.rows()
        if not best or groups[-1][1] < best[-1][1]:
            best = groups
        # Where rows never were crowded, another setting changes nothing.
        if not best or best[-1][1] <= bound or not filling.was_crowded or 0 < give_up_above < best[-1][1]:
            break
    return best


def _settings(limit: int) -> list[tuple[int, float]]:
    """(examples a row from which on rows are made of both ends, margin): no pair is the best for every corpus."""
    crowded = _CROWDED if limit > LIMIT_MATTERS else [int(limit * share) for share in _SHARES]
    return [(crowded[0], margin) for margin in _MARGINS[:2]] + [
        *((number, _MARGINS[0]) for number in crowded[1:]),
        (crowded[0], _MARGINS[2]),
    ]


class _Filling:
    """Takes rows out of a supply until it is empty."""

    def __init__(self, supply: _Supply, limit: int, crowded: int, margin: float) -> None:
        self._supply = supply
        self._limit = limit
        self._crowded = crowded
        self._margin = margin
        self.was_crowded = False

    def rows(self) -> list[Group]:
        """Every turn takes the longest example left, at least, and no turn gives one back: it ends after as many turns as there are examples."""
        supply, groups, row = self._supply, [], 0
        while supply.examples:
            lengths = self._one_row()
            per_row: dict[int, int] = {}
            for length in lengths:
                per_row[length] = per_row.get(length, 0) + 1
            more = min(supply.counts[length] // count for length, count in per_row.items())
            if more:
                for length, count in per_row.items():
                    supply.take(length, more * count)
            groups.append((row, row + 1 + more, per_row))
            row += 1 + more
        return groups

    def _one_row(self) -> list[int]:
        """Takes one row's lengths out of the supply: exactly full where a way is found."""
        supply, limit, capacity = self._supply, self._limit, self._supply.capacity
        a_row = supply.examples * capacity / supply.tokens
        both_ends = a_row >= self._crowded and supply.tokens > capacity
        self.was_crowded |= both_ends
        longest = supply.longest(capacity)
        # Enough examples that rows of the longest alone would fill, and as many as leave the others their share.
        wanted = min(max(math.ceil(a_row - self._margin), -(-capacity // longest)), limit)
        lengths = [longest]
        supply.take(longest)
        gap = capacity - longest
        while gap and supply.available and len(lengths) < limit:
            if (not both_ends or wanted - len(lengths) <= 2) and (
                closing := _close(supply, gap, limit - len(lengths), alike=not both_ends)
            ):
                return lengths + closing
            left = wanted - len(lengths)
            shortest = supply.shortest()
            if both_ends and left > 2 and shortest <= gap <= shortest + (left - 1) * supply.longest(capacity):
                length = shortest
            else:
                length = supply.longest(gap)
            if not length:
                break
            supply.take(length)
            lengths.append(length)
            gap -= length
        return lengths


def _close(supply: _Supply, gap: int, places: int, *, alike: bool) -> list[int]:
    """Takes one, two or three lengths that fill the gap; takes nothing and gives [] where none do."""
    if supply.counts[gap]:
        supply.take(gap)
        return [gap]
    if places < 2 or gap < 2:
        return []
    if longer := supply.pair(gap, alike=alike):
        supply.take(longer)
        supply.take(gap - longer)
        return [longer, gap - longer]
    longest = supply.longest(gap)
    if places < 3 or not longest or gap > 3 * longest:
        return []
    candidates = supply.available & ((2 << longest) - 1)
    for _ in range(_THIRDS):
        if not candidates:
            break
        third = candidates.bit_length() - 1
        candidates ^= 1 << third
        supply.take(third)
        if gap - third >= 2 and (longer := supply.pair(gap - third, alike=alike)):
            supply.take(longer)
            supply.take(gap - third - longer)
            return [third, longer, gap - third - longer]
        supply.give_back(third)
    return []
