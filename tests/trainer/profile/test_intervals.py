"""Sets of stretches against sets of whole moments."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from packer.types import Int64Array
from trainer.profile.intervals import difference, intersection, spans, total, union

Pairs = list[tuple[int, int]]
stretches = st.lists(st.tuples(st.integers(-20, 40), st.integers(-20, 40)), max_size=12)


def moments(pairs: Pairs) -> set[int]:
    """The slow way: every unit of time on its own."""
    return {moment for start, end in pairs for moment in range(start, end)}


def seen(joined: Int64Array) -> set[int]:
    return moments([(int(start), int(end)) for start, end in joined])


@given(stretches)
def test_a_union_holds_each_moment_once(pairs: Pairs) -> None:
    joined = union(spans(pairs))
    assert seen(joined) == moments(pairs)
    assert total(spans(pairs)) == len(moments(pairs))
    # Sorted, not empty, and neighbours do not touch: they would be one.
    assert all(start < end for start, end in joined.tolist())
    assert all(before[1] < after[0] for before, after in zip(joined.tolist(), joined.tolist()[1:], strict=False))


@given(stretches, stretches)
def test_intersection_and_difference_are_those_of_sets(a: Pairs, b: Pairs) -> None:
    assert seen(intersection(spans(a), spans(b))) == moments(a) & moments(b)
    assert seen(difference(spans(a), spans(b))) == moments(a) - moments(b)


def test_nothing_has_no_length() -> None:
    assert total(spans([])) == 0
    assert difference(spans([(0, 5)]), spans([])).tolist() == [[0, 5]]
