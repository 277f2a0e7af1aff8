"""The plan holds every example exactly once, keeps to its definition, and is drawn by nothing but its arguments."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packer.plan import lower_bound, make_plan

lengths_lists = st.lists(st.integers(1, 64), max_size=120)


def slow_best_fit_decreasing(lengths: list[int], capacity: int, limit: int) -> int:
    """Rows that the definition needs: longest first, each into the row with the least room that is enough and fewer than `limit` examples."""
    rows: list[tuple[int, int]] = []  # (room, examples)
    for length in sorted(lengths, reverse=True):
        fitting = [row for row in range(len(rows)) if rows[row][0] >= length and (not limit or rows[row][1] < limit)]
        if fitting:
            row = min(fitting, key=lambda row: rows[row][0])
            rows[row] = (rows[row][0] - length, rows[row][1] + 1)
        else:
            rows.append((capacity - length, 1))
    return len(rows)


def check(plan, lengths: np.ndarray, capacity: int, limit: int) -> None:
    assert plan.offsets.dtype == plan.members.dtype == np.int64
    assert plan.offsets[0] == 0
    assert plan.offsets[-1] == len(lengths) == len(plan.members)
    assert sorted(plan.members.tolist()) == list(range(len(lengths)))
    for row in range(len(plan)):
        members = plan.row(row)
        used = int(lengths[members].sum())
        assert 0 < used <= capacity
        assert not limit or len(members) <= limit
        assert len(members) + (used < capacity) <= plan.max_segments
    assert plan.max_segments % 8 == 0


@given(lengths_lists, st.sampled_from(["optimal", "bfd", "sequential"]), st.sampled_from([0, 1, 2, 7, None]))
def test_every_example_lies_in_exactly_one_row_that_it_fits(
    lengths: list[int], strategy: str, limit: int | None
) -> None:
    array = np.array(lengths, dtype=np.int32)
    check(make_plan(array, capacity=64, max_segments=limit, strategy=strategy), array, 64, limit or 0)


@settings(max_examples=300)
@given(lengths_lists)
def test_bfd_needs_the_rows_of_its_definition(lengths: list[int]) -> None:
    plan = make_plan(np.array(lengths, dtype=np.int64), capacity=64, max_segments=0, strategy="bfd")
    assert len(plan) == slow_best_fit_decreasing(lengths, 64, 0)


@given(lengths_lists, st.integers(1, 9))
def test_a_cap_costs_little_more_than_the_definition_with_the_same_cap(lengths: list[int], limit: int) -> None:
    """Rows of equal room but unequal counts are interchangeable to the definition; ours may take another of them, so the counts may differ a little."""
    plan = make_plan(np.array(lengths, dtype=np.int64), capacity=64, max_segments=limit, strategy="bfd")
    slow = slow_best_fit_decreasing(lengths, 64, limit)
    assert len(plan) <= slow + 1 + slow // 10


@given(lengths_lists)
def test_sequential_keeps_the_order_given(lengths: list[int]) -> None:
    plan = make_plan(np.array(lengths, dtype=np.int64), capacity=64, max_segments=0, strategy="sequential")
    rows = sorted((plan.row(row).tolist() for row in range(len(plan))), key=lambda row: row[0])
    assert [example for row in rows for example in row] == list(range(len(lengths)))
    for before, after in itertools.pairwise(rows):
        assert sum(lengths[example] for example in before) + lengths[after[0]] > 64


@given(lengths_lists)
def test_no_plan_goes_below_the_lower_bound(lengths: list[int]) -> None:
    array = np.array(lengths, dtype=np.int64)
    assert len(make_plan(array, capacity=64, max_segments=0)) >= lower_bound(array, 64) >= -(-sum(lengths) // 64)


def test_the_lower_bound_counts_examples_that_cannot_share_a_row() -> None:
    assert lower_bound(np.array([33, 33, 33]), 64) == 3
    assert lower_bound(np.array([22, 22, 22, 22]), 64) == 2
    assert lower_bound(np.array([64, 1]), 64) == 2


def test_the_plan_depends_on_nothing_but_its_arguments() -> None:
    lengths = np.random.Generator(np.random.PCG64(1)).integers(1, 500, 2000)
    first = make_plan(lengths, capacity=1024, seed=3)
    random.seed(9)
    np.random.seed(9)  # the ambient state that must not matter
    again = make_plan(lengths.astype(np.int32), capacity=1024, seed=3)
    assert (first.members == again.members).all()
    assert (first.offsets == again.offsets).all()
    other = make_plan(lengths, capacity=1024, seed=4)
    assert not (other.members == first.members).all()
    assert {frozenset(first.row(r)) for r in range(len(first))} == {frozenset(other.row(r)) for r in range(len(other))}


def test_neighbouring_rows_are_not_alike() -> None:
    """Rows are made of the longest examples first; left in that order, training would see the long ones together."""
    lengths = np.random.Generator(np.random.PCG64(2)).integers(1, 1024, 3000)
    plan = make_plan(lengths, capacity=1024, seed=0)
    means = np.array([lengths[plan.row(row)].mean() for row in range(len(plan))])
    assert np.std(means) > 50
    # Of about 1,500 rows at random, the correlation has a standard deviation of 0.026.
    assert abs(np.corrcoef(means, np.arange(len(means)))[0, 1]) < 0.1


def test_auto_costs_no_more_than_one_row_in_a_thousand() -> None:
    lengths = np.clip(np.random.Generator(np.random.PCG64(0)).lognormal(np.log(300), 1.0, 50_000), 4, 8192).astype(
        np.int32
    )
    free = make_plan(lengths, capacity=8192, max_segments=0)
    auto = make_plan(lengths, capacity=8192, max_segments=None)
    assert len(auto) <= len(free) * 1.001
    assert auto.max_segments < free.max_segments
    smaller = make_plan(lengths, capacity=8192, max_segments=auto.max_segments - 9)
    assert len(smaller) > len(free) * 1.001, "a smaller multiple of 8 would have done"


@settings(max_examples=200)
@given(lengths_lists, st.sampled_from([0, 3, 7, 20]))
def test_optimal_never_needs_more_rows_than_best_fit(lengths: list[int], limit: int) -> None:
    array = np.array(lengths, dtype=np.int64)
    optimal, best_fit = (len(make_plan(array, capacity=64, max_segments=limit, strategy=s)) for s in ("optimal", "bfd"))
    assert optimal <= best_fit


def slow_optimum(lengths: list[int], capacity: int) -> int:
    """The fewest rows by trying everything: for each number of rows, place the longest first, backtracking."""
    ordered = sorted(lengths, reverse=True)

    def fits(rooms: tuple[int, ...], place: int) -> bool:
        if place == len(ordered):
            return True
        for room in sorted(set(rooms)):
            if room >= ordered[place]:
                left = list(rooms)
                left.remove(room)
                if fits((*left, room - ordered[place]), place + 1):
                    return True
        return False

    return next(rows for rows in range(len(lengths) + 1) if fits((capacity,) * rows, 0))


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(1, 20), max_size=9))
def test_optimal_is_at_most_one_row_from_the_true_optimum_of_small_corpora(lengths: list[int]) -> None:
    plan = make_plan(np.array(lengths, dtype=np.int64), capacity=20, max_segments=0)
    assert slow_optimum(lengths, 20) <= len(plan) <= slow_optimum(lengths, 20) + 1


@pytest.mark.parametrize(("count", "mean"), [(20_000, 1200), (100_000, 300)])
def test_optimal_meets_the_lower_bound_on_lengths_as_chats_have_them(count: int, mean: int) -> None:
    lengths = np.clip(np.random.Generator(np.random.PCG64(7)).gamma(2.0, mean / 2, count), 4, 8192).astype(np.int32)
    plan = make_plan(lengths, capacity=8192, max_segments=63)
    check(plan, lengths, 8192, 63)
    assert len(plan) == lower_bound(lengths, 8192)


@pytest.mark.parametrize("lengths", [[0], [65], [-1], [3, 100]])
def test_lengths_that_fit_no_row_are_an_error(lengths: list[int]) -> None:
    with pytest.raises(ValueError, match="lengths must be from 1"):
        make_plan(np.array(lengths), capacity=64)


def test_memory_does_not_grow_with_lists_of_examples() -> None:
    """200,000 examples, peak of the planner itself under 100 bytes an example."""
    import tracemalloc

    lengths = np.random.Generator(np.random.PCG64(0)).integers(1, 2000, 200_000).astype(np.int32)
    tracemalloc.start()
    make_plan(lengths, capacity=8192)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100 * len(lengths)
