"""How often each conversation of a weighted source goes in: pure, from seed, source and row.

>>> copies(Fraction(2), seed=0, source=0, rows=np.arange(3)).tolist()
[2, 2, 2]
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import xxhash

from packer.types import Int32Array, Int64Array


def copies(weight: Fraction, *, seed: int, source: int, rows: Int64Array) -> Int32Array:
    """int32 [n]: the whole part of the weight, and one more for a share of the rows drawn by a hash of seed, source and row."""
    whole, rest = divmod(weight, 1)
    drawn = np.full(len(rows), int(whole), dtype=np.int32)
    if rest:
        below = int(rest * 2**64)
        words = (f"{seed}:{source}:{row}".encode() for row in rows.tolist())
        drawn += np.fromiter(
            (xxhash.xxh3_64_intdigest(word) < below for word in words), dtype=np.int32, count=len(rows)
        )
    return drawn
