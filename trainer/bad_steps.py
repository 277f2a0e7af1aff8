"""Steps whose gradient was not finite: counted on the device, looked at only where a line of metrics is due.

bad = BadSteps(device)
bad.add(step, result.finite)          # every step; waits for nothing
bad.first, bad.count                  # waits for the device
"""

from __future__ import annotations

import torch
from torch import Tensor


class BadSteps:
    """Of one part of a run. device: where the gradient's norm lies."""

    def __init__(self, device: torch.device) -> None:
        self._first = torch.full((), -1, dtype=torch.int64, device=device)
        self._count = torch.zeros((), dtype=torch.int64, device=device)

    def add(self, step: int, finite: Tensor) -> None:
        """finite: bool []."""
        self._first = torch.where((self._first < 0) & ~finite, step, self._first)
        self._count += ~finite

    @property
    def first(self) -> int:
        """The first of them, from 0; -1 where there was none."""
        return int(self._first)

    @property
    def count(self) -> int:
        """How many there were: updates that were not made."""
        return int(self._count)
