"""Peaks of memory by part of a step, against a walk over every moment."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trainer.profile.events import Event
from trainer.profile.memory import peaks

PARTS = (("forward", 0, 20), ("backward", 20, 40), ("forward", 40, 60), ("optimiser", 60, 70))


@given(st.lists(st.tuples(st.integers(-5, 80), st.integers(-50, 100)), max_size=20))
def test_a_part_holds_at_most_what_is_held_at_any_moment_of_it(allocations: list[tuple[int, int]]) -> None:
    events = [Event(kind="phase", name=name, start=start, end=end) for name, start, end in PARTS]
    events += [Event(kind="allocation", name="", start=at, end=at, nbytes=size) for at, size in allocations]
    ordered = sorted(allocations, key=lambda each: each[0])
    expected: dict[str, int] = {}
    for name, start, end in PARTS:
        held = [1000 + sum(size for at, size in ordered if at < start)]
        held += [
            1000 + sum(size for _, size in ordered[: place + 1])
            for place, (at, _) in enumerate(ordered)
            if start <= at < end
        ]
        expected[name] = max(expected.get(name, 0), *held)
    assert peaks(events, held=1000) == expected
