"""What packing saves: the same examples as 2-D padded batches, four ways, counted from their lengths.

>>> savings = compare(np.array([10, 20, 30, 60]), capacity=64)
>>> savings["longest"].slots, savings["rows_4"].slots
(256, 240)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from packer.order import permutation
from packer.types import Int64Array

BASELINES = {
    "rows_4": "4 examples a batch, padded to the longest of them, in random order",
    "token_budget": "as many examples as fit in one row's slots once padded, in random order",
    "grouped": "the same, examples grouped by length",
    "longest": "every example padded to the capacity, one a row",
}
_ROWS = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Padded:
    """One way to pad: batches, slots in all (padding counted), slots that hold no token."""

    batches: int
    slots: int
    pad_slots: int


def compare(lengths: np.ndarray, *, capacity: int, seed: int = 0) -> dict[str, Padded]:
    """The four baselines for examples of these lengths (int [N], at least one)."""
    lengths = np.asarray(lengths, dtype=np.int64)
    shuffled = lengths[permutation(len(lengths), seed)]
    tokens = int(lengths.sum())

    def padded(batches: int, slots: int) -> Padded:
        return Padded(batches=batches, slots=slots, pad_slots=slots - tokens)

    fours = np.maximum.reduceat(shuffled, np.arange(0, len(shuffled), _ROWS))
    sizes = np.full(len(fours), _ROWS)
    sizes[-1] = len(shuffled) - _ROWS * (len(fours) - 1)
    return {
        "rows_4": padded(len(fours), int((fours * sizes).sum())),
        "token_budget": padded(*_by_budget(shuffled, capacity)),
        "grouped": padded(*_by_budget(np.sort(lengths), capacity)),
        "longest": padded(len(lengths), len(lengths) * capacity),
    }


def _by_budget(lengths: Int64Array, budget: int) -> tuple[int, int]:
    """(batches, slots) where a batch takes examples in order as long as examples x longest stay within the budget."""
    batches = slots = count = longest = 0
    for length in lengths.tolist():
        if count and (count + 1) * max(longest, length) > budget:
            batches, slots = batches + 1, slots + count * longest
            count = longest = 0
        count, longest = count + 1, max(longest, length)
    return batches + 1, slots + count * longest
