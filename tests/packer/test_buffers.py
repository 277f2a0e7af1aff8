"""Padded batches of the examples of some rows."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from packer.buffers import Block, Lane, padded


def lane_of(lengths: list[int], first: int) -> Lane:
    ends = [sum(lengths[:place]) for place in range(len(lengths) + 1)]
    blocks = tuple(
        Block(example=first + place, start=ends[place], tokens=length) for place, length in enumerate(lengths)
    )
    return Lane(slots=ends[-1] + 5, blocks=blocks)


@given(st.lists(st.lists(st.integers(1, 50), min_size=1, max_size=9), min_size=1, max_size=4))
def test_padded_batches_hold_every_example_once_padded_to_the_longest_beside_it(rows: list[list[int]]) -> None:
    lanes = [lane_of(lengths, 100 * number) for number, lengths in enumerate(rows)]
    batches = padded(lanes)
    wanted = sorted((block.example, block.tokens) for lane in lanes for block in lane.blocks)
    assert sorted((one.example, one.tokens) for batch in batches for lane in batch for one in lane.blocks) == wanted
    assert [len(batch) for batch in batches[:-1]] == [4] * (len(batches) - 1)
    for batch in batches:
        assert {lane.slots for lane in batch} == {max(lane.tokens for lane in batch)}


def test_padded_batches_are_in_no_order_of_the_rows() -> None:
    batches = padded([lane_of([7] * 40, 0)])
    order = [lane.blocks[0].example for batch in batches for lane in batch]
    assert sorted(order) == list(range(40))
    assert order != list(range(40))
