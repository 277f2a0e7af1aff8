"""What is cut off an over-long example, and that nothing else is."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from packer.overlong import cut, targets

ends_lists = st.lists(st.integers(1, 60), max_size=6, unique=True).map(sorted)


@given(st.integers(1, 60), ends_lists, st.integers(1, 70), st.sampled_from(["drop", "truncate", "split", "error"]))
def test_pieces_fit_and_lie_one_behind_the_other(length: int, ends: list[int], capacity: int, policy: str) -> None:
    turn_ends = np.array([end for end in ends if end <= length], dtype=np.int32)
    pieces = cut(length=length, turn_ends=turn_ends, capacity=capacity, policy=policy)
    at = 0
    for start, end in pieces:
        assert start == at
        assert 0 < end - start <= capacity
        at = end
    if length <= capacity:
        assert pieces == [(0, length)]
    elif policy == "split":
        assert at == length
    elif policy == "truncate":
        fitting = [end for end in turn_ends.tolist() if end <= capacity]
        assert pieces == ([(0, max(fitting))] if fitting else [])
    else:
        assert pieces == []


def test_a_piece_prefers_to_end_where_a_turn_ends() -> None:
    assert cut(length=13, turn_ends=np.array([4, 9, 13]), capacity=10, policy="split") == [(0, 9), (9, 13)]
    assert cut(length=25, turn_ends=np.array([25]), capacity=10, policy="split") == [(0, 10), (10, 20), (20, 25)]


def test_the_first_token_of_a_piece_is_no_target() -> None:
    mask = np.array([False, True, True, True, False])
    assert [targets(mask, 0, 5), targets(mask, 1, 5), targets(mask, 2, 4), targets(mask, 4, 5)] == [3, 2, 1, 0]
