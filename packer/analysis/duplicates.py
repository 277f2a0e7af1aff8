"""Conversations that say exactly what an earlier one says, counted at 8 bytes a conversation.

counter = DuplicateCounter()
counter.add(content_hash, is_eval)      # each conversation once
counter.notes()                         # for the ledger
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from packer.listing import Growing
from packer.types import BoolArray


class DuplicateCounter:
    """Counts conversations of equal content_hash, within a split and across both."""

    def __init__(self) -> None:
        self._train, self._eval = Growing(np.uint64), Growing(np.uint64)

    def add(self, content_hash: NDArray[np.uint64], is_eval: BoolArray) -> None:
        """Add conversations.

        Args:
            content_hash: uint64 [n].
            is_eval: bool [n], whether each is in the eval split.
        """
        self._train.add(content_hash[~is_eval])
        self._eval.add(content_hash[is_eval])

    def notes(self) -> dict[tuple[str, str], int]:
        """Count the repeats, by kind and detail; no entry for a count of 0."""
        splits = self._train.values, self._eval.values
        for hashes in splits:
            hashes.sort()  # in place: a sorted copy would double the memory
        train, (distinct, in_eval) = splits[0], np.unique(splits[1], return_counts=True)
        in_train = np.searchsorted(train, distinct, "right") - np.searchsorted(train, distinct, "left")
        shared = in_train > 0
        within = sum(int((hashes[1:] == hashes[:-1]).sum()) for hashes in splits)
        counts = {
            "conversations that repeat an earlier one": within + int(shared.sum()),
            "of them in both train and eval": int((in_train + in_eval - 1)[shared].sum()),
        }
        return {("duplicates", detail): count for detail, count in counts.items() if count}
