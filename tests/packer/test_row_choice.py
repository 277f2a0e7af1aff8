"""Which rows a page shows."""

from __future__ import annotations

import numpy as np

from packer.row_choice import choose


def test_the_extremes_are_chosen_with_their_reasons() -> None:
    chosen = choose(
        tokens=np.array([5, 6, 9, 1, 6]), segments=np.array([2, 2, 2, 2, 7]), targets=np.array([1, 0, 1, 1, 3])
    )
    assert chosen == {
        0: ("one of the first rows", "fewest segments"),
        1: ("one of the first rows", "fewest targets"),
        2: ("fullest",),
        3: ("emptiest",),
        4: ("most segments", "most targets"),
    }


def test_rows_that_are_alike_have_no_extremes_and_no_rows_no_choice() -> None:
    same = np.full(9, 3)
    assert choose(tokens=same, segments=same, targets=same) == dict.fromkeys((0, 1), ("one of the first rows",))
    assert choose(tokens=same[:0], segments=same[:0], targets=same[:0]) == {}
