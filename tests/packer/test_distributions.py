"""Histograms against a count by hand, one value at a time."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer.distributions import Histogram, distributions, doubling, linear

VALUES = st.lists(st.integers(1, 3_000_000), min_size=1, max_size=60)


def by_hand(values: list[int], edges: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sum(low <= value < high for value in values) for low, high in pairwise(edges))


@given(VALUES)
def test_every_value_is_in_the_bin_that_holds_it(values: list[int]) -> None:
    for histogram in (linear(np.array(values)), doubling(np.array(values))):
        assert histogram.counts == by_hand(values, histogram.edges)
        assert sum(histogram.counts) == len(values)


@given(VALUES)
def test_bins_are_few_and_end_where_the_values_do(values: list[int]) -> None:
    even, growing = linear(np.array(values)), doubling(np.array(values))
    assert len(even.counts) <= 40
    assert len({high - low for low, high in pairwise(even.edges)}) == 1
    assert even.counts[-1] > 0
    assert growing.counts[0] > 0
    assert growing.counts[-1] > 0
    assert len(growing.counts) <= 2 * max(values).bit_length()
    assert all(high <= 2 * low for low, high in pairwise(growing.edges))


def test_no_values_have_no_bins() -> None:
    assert (
        linear(np.zeros(0, dtype=np.int64)) == doubling(np.zeros(0, dtype=np.int64)) == Histogram(edges=(), counts=())
    )


@pytest.mark.parametrize(("tokens", "bin_"), [(4096, 6), (4095, 5), (4056, 5), (4055, 4), (2048, 1), (2047, 0), (1, 0)])
def test_a_row_is_full_only_without_a_pad(tokens: int, bin_: int) -> None:
    """4,055.04 tokens are 99% of 4,096."""
    row = np.array([tokens])
    found = distributions(lengths=row, row_tokens=row, segments=np.array([1]), capacity=4096).fill
    assert found.counts[bin_] == 1
