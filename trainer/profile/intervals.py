"""Sets of stretches of time: int64 [n, 2] of (start, end), in any order and overlapping where they come in, sorted and disjoint where they come out.

Device time is counted as the length of a union: what runs at once on two streams counts once.

    >>> import numpy as np
    >>> a, b = np.array([[0, 10], [5, 20]]), np.array([[15, 30]])
    >>> union(a).tolist(), intersection(a, b).tolist(), difference(a, b).tolist(), total(a)
    ([[0, 20]], [[15, 20]], [[0, 15]], 20)
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from packer.types import BoolArray, Int64Array


def spans(pairs: Iterable[tuple[int, int]]) -> Int64Array:
    """(start, end) pairs as int64 [n, 2]."""
    return np.array(list(pairs), dtype=np.int64).reshape(-1, 2)


def _pieces(a: Int64Array, b: Int64Array) -> tuple[Int64Array, BoolArray, BoolArray]:
    """The line cut at every end of a stretch: pieces [m, 2] in order, and which of them lie in a and in b."""
    points = np.concatenate([a[:, 0], a[:, 1], b[:, 0], b[:, 1]])
    changes = np.zeros((len(points), 2), dtype=np.int64)
    one, two = len(a), len(b)
    changes[:one, 0], changes[one : 2 * one, 0] = 1, -1
    changes[2 * one : 2 * one + two, 1], changes[2 * one + two :, 1] = 1, -1
    order = np.argsort(points, kind="stable")
    points, depth = points[order], np.cumsum(changes[order], axis=0)
    cut = np.stack([points[:-1], points[1:]], axis=1)
    return cut, depth[:-1, 0] > 0, depth[:-1, 1] > 0


def _joined(cut: Int64Array, inside: BoolArray) -> Int64Array:
    """Pieces that are inside and not empty, neighbours made one."""
    kept = cut[inside & (cut[:, 1] > cut[:, 0])]
    if not len(kept):
        return kept
    begins = np.concatenate([[True], kept[1:, 0] > kept[:-1, 1]])
    ends = np.concatenate([begins[1:], [True]])
    return np.stack([kept[begins, 0], kept[ends, 1]], axis=1)


def _nothing() -> Int64Array:
    return np.empty((0, 2), dtype=np.int64)


def _valid(a: Int64Array) -> Int64Array:
    """Without stretches that end before they start or at once: they are no time."""
    return a[a[:, 1] > a[:, 0]]


def union(a: Int64Array) -> Int64Array:
    """What lies in any stretch of a."""
    cut, in_a, _ = _pieces(_valid(a), _nothing())
    return _joined(cut, in_a)


def intersection(a: Int64Array, b: Int64Array) -> Int64Array:
    """What lies in both."""
    cut, in_a, in_b = _pieces(_valid(a), _valid(b))
    return _joined(cut, in_a & in_b)


def difference(a: Int64Array, b: Int64Array) -> Int64Array:
    """What lies in a and not in b."""
    cut, in_a, in_b = _pieces(_valid(a), _valid(b))
    return _joined(cut, in_a & ~in_b)


def total(a: Int64Array) -> int:
    """The length of the union of a."""
    joined = union(a)
    return int((joined[:, 1] - joined[:, 0]).sum())
