"""How values are spread, counted into a bounded number of bins: what the histograms of `packer stats` are drawn from, whatever the corpus's size.

>>> linear(np.array([1, 2, 9]), most=5)
Histogram(edges=(0, 2, 4, 6, 8, 10), counts=(1, 1, 0, 0, 1))
>>> doubling(np.array([5, 6, 40])).edges
(4, 6, 8, 12, 16, 24, 32, 48)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from packer.types import Int64Array

_LINEAR_BINS = 40
# Of a row, in percent. The last bin is of rows without a pad.
_FILL_EDGES = (0, 50, 75, 90, 95, 99, 100, 101)


@dataclass(frozen=True, kw_only=True, slots=True)
class Histogram:
    """counts[i]: how many values v have edges[i] <= v < edges[i + 1]. Every value is in one bin; no edges and no counts where there are no values."""

    edges: tuple[int, ...]
    counts: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Distributions:
    """Of one split. length, length_log: tokens an example, in bins of one width and in bins that grow with the length. fill: tokens of a row in
    percent of its slots. segments: segments a row, the pad tail counted.
    """

    length: Histogram
    length_log: Histogram
    fill: Histogram
    segments: Histogram


def distributions(*, lengths: Int64Array, row_tokens: Int64Array, segments: Int64Array, capacity: int) -> Distributions:
    """lengths: int [N], tokens of each example. row_tokens, segments: int [R], of each row."""
    return Distributions(
        length=linear(lengths),
        length_log=doubling(lengths),
        # A row of 99.99 % is below the edge of 100: rounded down, not to the nearest.
        fill=_count(row_tokens.astype(np.int64) * 100 // capacity, _FILL_EDGES),
        segments=linear(segments),
    )


def linear(values: np.ndarray, *, most: int = _LINEAR_BINS) -> Histogram:
    """From 0 on, in at most `most` bins of a width that is 1, 2 or 5 times a power of ten."""
    if not len(values):
        return Histogram(edges=(), counts=())
    longest = int(values.max())
    width = next(
        factor * 10**power for power in range(19) for factor in (1, 2, 5) if longest // (factor * 10**power) < most
    )
    return _count(values, tuple(range(0, (longest // width + 2) * width, width)))


def doubling(values: np.ndarray) -> Histogram:
    """Two bins to an octave, with whole edges: 1, 2, 3, 4, 6, 8, 12, 16, 24, … from the bin of the smallest value to that of the largest.

    A value below 1 is counted in the first bin.
    """
    if not len(values):
        return Histogram(edges=(), counts=())
    values = np.maximum(values, 1)
    smallest, largest = int(values.min()), int(values.max())
    ladder = sorted({1, 2, 3} | {step << power for step in (2, 3) for power in range(largest.bit_length() + 1)})
    first = max(place for place, edge in enumerate(ladder) if edge <= smallest)
    last = next(place for place, edge in enumerate(ladder) if edge > largest)
    return _count(values, tuple(ladder[first : last + 1]))


def _count(values: np.ndarray, edges: tuple[int, ...]) -> Histogram:
    bins = np.searchsorted(edges, values, side="right") - 1
    counts = np.bincount(bins, minlength=len(edges) - 1)
    return Histogram(edges=edges, counts=tuple(counts.tolist()))
