"""Lengths in tokens as chat data sets have them, for plans: int32 [n], from 1 to the capacity, the same for the same n and capacity.

    >>> ultrachat(3, capacity=8192).dtype, int(uniform(1000, capacity=64).max())
    (dtype('int32'), 64)

ultrachat_200k's conversations have a mean near 1,250 tokens (its card's bytes a row, at the bytes a token of 1,000 of its rows); their shape is a model.
"""

from __future__ import annotations

import numpy as np

from packer.types import Int32Array


def _clipped(lengths: np.ndarray, low: int, high: int) -> Int32Array:
    return np.clip(lengths, low, high).astype(np.int32)


def ultrachat(n: int, *, capacity: int) -> Int32Array:
    """Gamma of shape 4.2 and mean 1,228; one in 70 is from a long tail around 3,000; none past 8,000."""
    draw = np.random.default_rng(1)
    long = draw.random(n) < 1 / 70
    lengths = np.where(long, draw.lognormal(np.log(3000), 0.35, n), draw.gamma(4.2, 1228 / 4.2, n))
    return _clipped(lengths, 16, min(capacity, 8000))


def short(n: int, *, capacity: int) -> Int32Array:
    """Around 300 tokens."""
    return _clipped(np.random.default_rng(2).lognormal(np.log(300), 1.0, n), 4, capacity)


def heavy(n: int, *, capacity: int) -> Int32Array:
    """Around a sixteenth of the capacity, a tail that reaches all of it."""
    return _clipped(np.random.default_rng(3).lognormal(np.log(capacity / 16), 1.5, n), 4, capacity)


def uniform(n: int, *, capacity: int) -> Int32Array:
    return np.random.default_rng(4).integers(1, capacity + 1, n, dtype=np.int32)


def just_over(n: int, parts: int, *, capacity: int) -> Int32Array:
    """A little more than capacity ÷ parts: at most parts - 1 share a row."""
    return (capacity // parts + np.random.default_rng(5).integers(1, capacity // 64, n)).astype(np.int32)
