"""What becomes of an example that does not fit a row: nothing, a beginning of it, or pieces. Pure, and every token is accounted for.

Pieces do not overlap, so each token is in one row, once. The first token of a later piece is context and no target there: one target lost a piece.

>>> cut(length=10, turn_ends=np.array([4, 9]), capacity=6, policy="truncate")
[(0, 4)]
>>> cut(length=10, turn_ends=np.array([4, 9]), capacity=6, policy="split")
[(0, 4), (4, 10)]
"""

from __future__ import annotations

import numpy as np

from packer.types import Int32Array
from packer.words import Overlong


def cut(*, length: int, turn_ends: Int32Array, capacity: int, policy: Overlong) -> list[tuple[int, int]]:
    """The pieces [start, end) of an example of `length` tokens that go into rows; the whole where it fits.

    auto: split for a document (no turn ends), drop for a conversation. truncate: whole turns off the end, so that no answer is cut from the token that ends it; nothing where not even the first turn fits. split: a piece
    ends behind a turn where one ends within reach, else at the capacity, so that no token is lost; for documents, and seldom right for chats. drop,
    error: nothing (the caller raises).
    """
    if length <= capacity:
        return [(0, length)]
    policy = effective_policy(policy, turn_ends)
    if policy == "truncate":
        fitting = turn_ends[turn_ends <= capacity]
        return [(0, int(fitting.max()))] if len(fitting) else []
    if policy != "split":
        return []
    pieces: list[tuple[int, int]] = []
    start = 0
    # Ends: every piece has at least one token.
    while length - start > capacity:
        within = turn_ends[(turn_ends > start) & (turn_ends <= start + capacity)]
        # A last piece of one token would hold no target: the EOS of a document would be lost.
        end = int(within.max()) if len(within) else start + capacity - (length - start == capacity + 1)
        pieces.append((start, end))
        start = end
    return [*pieces, (start, length)]


def effective_policy(policy: Overlong, turn_ends: Int32Array) -> Overlong:
    """The policy that "auto" stands for; any other as it is."""
    if policy != "auto":
        return policy
    return "drop" if len(turn_ends) else "split"


def targets(mask: np.ndarray, start: int, end: int) -> int:
    """Targets of a piece: those of its stretch of the mask, less its first token, before which nothing stands."""
    return int(mask[start + 1 : end].sum())
