"""The plan holds every example exactly once, keeps to its definition, and is drawn by nothing but its arguments."""

from __future__ import annotations

import importlib.util
import random
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packer.plan import lower_bound, make_plan
from tests.support import MODELLED

lengths_lists = st.lists(st.integers(1, 64), max_size=120)


Row = list[int]


def slow_best_fit_decreasing(lengths: Row, capacity: int, limit: int) -> list[Row]:
    """Longest first, each into the row with the least room that is enough and fewer than `limit` examples; of equal ones the one with the fewest."""
    rows: list[Row] = []
    for length in sorted(lengths, reverse=True):
        fitting = [row for row in rows if sum(row) + length <= capacity and (not limit or len(row) < limit)]
        if fitting:
            min(fitting, key=lambda row: (capacity - sum(row), len(row))).append(length)
        else:
            rows.append([length])
    return rows


def slow_first_fit_decreasing(lengths: Row, capacity: int, limit: int) -> list[Row]:
    """Longest first, each into the first row with room for it and fewer than `limit` examples."""
    rows: list[Row] = []
    for length in sorted(lengths, reverse=True):
        fitting = (row for row in rows if sum(row) + length <= capacity and (not limit or len(row) < limit))
        row = next(fitting, None)
        if row is None:
            rows.append([length])
        else:
            row.append(length)
    return rows


def slow_next_fit(lengths: Row, capacity: int, limit: int) -> list[Row]:
    rows: list[Row] = []
    for length in lengths:
        if not rows or sum(rows[-1]) + length > capacity or len(rows[-1]) == limit:
            rows.append([])
        rows[-1].append(length)
    return rows


def rows_of(plan, lengths: np.ndarray) -> list[Row]:
    """The lengths in each row, in an order of their own: which rows come first is drawn, and not part of any definition."""
    return sorted(sorted(lengths[plan.row(row)].tolist()) for row in range(len(plan)))


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


@given(lengths_lists, st.sampled_from(["optimal", "bfd", "ffd", "sequential"]), st.sampled_from([0, 1, 2, 7, None]))
def test_every_example_lies_in_exactly_one_row_that_it_fits(
    lengths: list[int], strategy: str, limit: int | None
) -> None:
    array = np.array(lengths, dtype=np.int32)
    check(make_plan(array, capacity=64, max_segments=limit, strategy=strategy), array, 64, limit or 0)


limits = st.sampled_from([0, 1, 2, 3, 7, 20])


@settings(max_examples=300)
@given(lengths_lists, limits)
def test_ffd_is_first_fit_decreasing(lengths: list[int], limit: int) -> None:
    array = np.array(lengths, dtype=np.int64)
    plan = make_plan(array, capacity=64, max_segments=limit, strategy="ffd")
    assert rows_of(plan, array) == sorted(sorted(row) for row in slow_first_fit_decreasing(lengths, 64, limit))


@settings(max_examples=300)
@given(lengths_lists, limits)
def test_bfd_is_best_fit_decreasing(lengths: list[int], limit: int) -> None:
    array = np.array(lengths, dtype=np.int64)
    plan = make_plan(array, capacity=64, max_segments=limit, strategy="bfd")
    assert rows_of(plan, array) == sorted(sorted(row) for row in slow_best_fit_decreasing(lengths, 64, limit))


@given(lengths_lists, limits)
def test_sequential_is_next_fit(lengths: list[int], limit: int) -> None:
    array = np.array(lengths, dtype=np.int64)
    plan = make_plan(array, capacity=64, max_segments=limit, strategy="sequential")
    rows = sorted((plan.row(row).tolist() for row in range(len(plan))), key=lambda row: row[0])
    assert [example for row in rows for example in row] == list(range(len(lengths)))
    assert [[lengths[example] for example in row] for row in rows] == slow_next_fit(lengths, 64, limit)


def test_first_fit_and_best_fit_part_ways_by_hand() -> None:
    """Rows of 10: 8 and 6 open two, 3 goes to the 6. The 1 fits both: the first has room 2, the other, best fit, room 1."""
    lengths = np.array([1, 3, 6, 8])
    rows = {s: rows_of(make_plan(lengths, capacity=10, max_segments=0, strategy=s), lengths) for s in ("ffd", "bfd")}
    assert rows == {"ffd": [[1, 8], [3, 6]], "bfd": [[1, 3, 6], [8]]}


@settings(max_examples=200)
@given(
    st.lists(st.integers(1, 64), max_size=80),
    st.sampled_from([1, 2, 4, 16, 32, 64]),
    st.sampled_from(["optimal", "bfd", "ffd", "sequential"]),
    st.sampled_from([0, 3, None]),
)
def test_an_aligned_plan_is_one_of_lengths_rounded_up(
    lengths: list[int], align: int, strategy: str, limit: int | None
) -> None:
    array = np.array(lengths, dtype=np.int32)
    rounded = np.array([-(-length // align) * align for length in lengths], dtype=np.int32)
    plan = make_plan(array, capacity=64, max_segments=limit, align=align, strategy=strategy)
    check(plan, rounded, 64, limit or 0)
    same = make_plan(rounded, capacity=64, max_segments=limit, align=align, strategy=strategy)
    assert rows_of(plan, rounded) == rows_of(same, rounded)
    assert len(plan) >= lower_bound(array, 64, align=align) == lower_bound(rounded, 64)


@pytest.mark.parametrize("align", [0, -1, 3, 128])
def test_an_alignment_that_does_not_divide_the_capacity_is_an_error(align: int) -> None:
    with pytest.raises(ValueError, match="align must divide"):
        make_plan(np.array([3]), capacity=64, align=align)


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


@pytest.mark.parametrize("strategy", ["optimal", "bfd", "ffd"])
def test_auto_is_the_smallest_multiple_of_8_that_costs_at_most_one_row_in_a_thousand(strategy: str) -> None:
    """Every smaller multiple of 8 is tried here; auto itself leaves out those that cannot be enough."""
    lengths = np.clip(np.random.Generator(np.random.PCG64(0)).lognormal(np.log(300), 1.0, 50_000), 4, 2048)
    lengths = lengths.astype(np.int32)
    free = make_plan(lengths, capacity=2048, max_segments=0, strategy=strategy)
    auto = make_plan(lengths, capacity=2048, max_segments=None, strategy=strategy)
    assert len(auto) <= len(free) * 1.001
    assert auto.max_segments < free.max_segments
    for segments in range(8, auto.max_segments, 8):
        smaller = make_plan(lengths, capacity=2048, max_segments=segments - 1, strategy=strategy)
        assert len(smaller) > len(free) * 1.001, f"{segments} would have done"


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


def gamma(count: int, mean: int) -> np.ndarray:
    return np.clip(np.random.Generator(np.random.PCG64(7)).gamma(2.0, mean / 2, count), 4, 8192).astype(np.int32)


@pytest.mark.parametrize(("count", "mean"), [(20_000, 1200), (100_000, 300)])
@pytest.mark.parametrize("limit", [63, 0, None])
def test_optimal_meets_the_lower_bound_on_lengths_as_chats_have_them(count: int, mean: int, limit: int | None) -> None:
    lengths = gamma(count, mean)
    plan = make_plan(lengths, capacity=8192, max_segments=limit)
    check(plan, lengths, 8192, limit or 0)
    assert len(plan) == lower_bound(lengths, 8192)


modelled = pytest.mark.skipif(not MODELLED.is_file(), reason=f"{MODELLED.name} is not there")


def modelled_corpora() -> ModuleType:
    spec = importlib.util.spec_from_file_location("lengths", MODELLED)
    assert spec is not None
    assert spec.loader is not None
    corpora = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(corpora)
    return corpora


@modelled
@pytest.mark.parametrize(("limit", "above"), [(0, 0), (None, 0), (7, 0), (15, 1), (63, 0)])
def test_207_865_chats_meet_the_lower_bound_with_few_segments_too(limit: int | None, above: int) -> None:
    """6.5 examples a row: a limit of 7 leaves hardly a choice."""
    corpora = modelled_corpora()
    lengths = corpora.ultrachat()
    plan = make_plan(lengths, capacity=8192, max_segments=limit)
    assert len(plan) <= corpora.lower_bound(lengths, 8192) + above
    assert not limit or np.diff(plan.offsets).max() <= limit


@modelled
@pytest.mark.parametrize("capacity", [2048, 8192])
def test_on_modelled_corpora_rows_stay_few_and_uncrowded(capacity: int) -> None:
    """100,000 lengths a corpus. No cap: at most a row above the bound. At most 64 segments: within a thousandth of it. Both never above best-fit's."""
    corpora = modelled_corpora()
    for name in ("short", "heavy"):
        lengths = getattr(corpora, name)(100_000, capacity=capacity)
        bound = corpora.lower_bound(lengths, capacity)
        assert len(make_plan(lengths, capacity=capacity, max_segments=0)) <= bound + 1, name
        capped = make_plan(lengths, capacity=capacity, max_segments=63)
        assert np.diff(capped.offsets).max() <= 63
        assert len(capped) <= bound * 1.001, name
    lengths = corpora.ultrachat(100_000, capacity=8192)
    assert len(make_plan(lengths, capacity=8192, max_segments=0)) == corpora.lower_bound(lengths, 8192)
    for parts in (2, 3):
        lengths = corpora.just_over(100_000, parts, capacity=capacity)
        assert len(make_plan(lengths, capacity=capacity)) == corpora.lower_bound(lengths, capacity)
    lengths = corpora.uniform(100_000, capacity=capacity)
    plans = {s: make_plan(lengths, capacity=capacity, max_segments=0, strategy=s) for s in ("optimal", "bfd", "ffd")}
    assert len(plans["optimal"]) <= min(len(plans["bfd"]), len(plans["ffd"]))


@pytest.mark.parametrize("strategy", ["optimal", "bfd", "ffd", "sequential"])
@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.uint64])
def test_the_plan_is_the_same_for_every_integer_type(dtype: type, strategy: str) -> None:
    lengths = np.random.Generator(np.random.PCG64(5)).integers(1, 120, 300)
    for align in (1, 64):
        plans = [
            make_plan(array, capacity=8192, align=align, strategy=strategy)
            for array in (lengths, lengths.astype(dtype))
        ]
        assert plans[0].members.tolist() == plans[1].members.tolist()
        assert plans[0].offsets.tolist() == plans[1].offsets.tolist()


@pytest.mark.parametrize("lengths", [[0], [65], [-1], [3, 100]])
def test_lengths_that_fit_no_row_are_an_error(lengths: list[int]) -> None:
    with pytest.raises(ValueError, match="lengths must be from 1"):
        make_plan(np.array(lengths), capacity=64)


@pytest.mark.parametrize("strategy", ["optimal", "bfd", "ffd", "sequential"])
def test_memory_does_not_grow_with_lists_of_examples(strategy: str) -> None:
    """2,000,000 examples: the peak of the planner itself stays under 40 bytes an example; the plan is 8, the sort that makes it 18."""
    import tracemalloc

    lengths = np.random.Generator(np.random.PCG64(0)).integers(1, 2000, 2_000_000).astype(np.int32)
    tracemalloc.start()
    make_plan(lengths, capacity=8192, max_segments=0, strategy=strategy)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 40 * len(lengths)
