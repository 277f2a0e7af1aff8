"""Rows are laid out by the rules of the format, and every broken rule is seen."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer.layout import Placed, lay_out
from packer.schema import RowBatch, broken_rule

C, S, PAD = 64, 8, 9


def example(number: int, length: int, *, all_targets: bool = True) -> tuple[int, np.ndarray, np.ndarray]:
    mask = np.full(length, all_targets)
    mask[0] = False
    return number, np.arange(10, 10 + length, dtype=np.int32), mask


def laid_out(
    rows: list[list[tuple[int, np.ndarray, np.ndarray]]], *, capacity: int = C, max_segments: int = S
) -> RowBatch:
    """The rows of these examples, each (number, ids, mask)."""
    flat = [one for row in rows for one in row]

    def joined(place: int, kind: type) -> np.ndarray:
        return np.concatenate([np.zeros(0, dtype=kind), *(one[place] for one in flat)]).astype(kind)

    placed = Placed(
        counts=np.array([len(row) for row in rows]),
        example_ids=np.array([one[0] for one in flat], dtype=np.int64),
        lengths=np.array([len(one[1]) for one in flat], dtype=np.int64),
        ids=joined(1, np.int32),
        loss_mask=joined(2, np.bool_),
    )
    return lay_out(placed, capacity=capacity, max_segments=max_segments, pad_id=PAD)


def batch(*rows: list[int]) -> RowBatch:
    numbers = iter(range(100, 1000))
    return laid_out([[example(next(numbers), length) for length in row] for row in rows])


def test_a_row_by_hand() -> None:
    rows = batch([3, 2])
    assert rows.input_ids[0, :7].tolist() == [10, 11, 12, 10, 11, PAD, PAD]
    assert rows.loss_mask[0, :7].tolist() == [False, True, True, False, True, False, False]
    assert rows.position_ids[0, :7].tolist() == [0, 1, 2, 0, 1, 0, 1]
    assert rows.cu_seqlens[0].tolist() == [0, 3, 5, 64, 64, 64, 64, 64, 64]
    assert rows.example_ids[0].tolist() == [100, 101, -1, -1, -1, -1, -1, -1]
    assert [
        int(column[0]) for column in (rows.num_segments, rows.num_examples, rows.num_supervised, rows.sum_sq_len)
    ] == [3, 2, 3, 13]
    assert rows.position_ids.dtype == np.uint16


def test_a_full_row_has_no_pad_tail() -> None:
    rows = batch([60, 4])
    assert rows.cu_seqlens[0, :4].tolist() == [0, 60, 64, 64]
    assert (int(rows.num_segments[0]), int(rows.num_examples[0])) == (2, 2)


def test_segments_of_one_token_stay_segments() -> None:
    rows = batch([3, 1, 1, 2])
    assert rows.cu_seqlens[0, :6].tolist() == [0, 3, 4, 5, 7, 64]
    assert int(rows.num_supervised[0]) == 3, "two of three, none, none, one of two"


def test_positions_past_65535_are_int32() -> None:
    row = laid_out([[example(0, 70_000)]], capacity=70_016)
    assert row.position_ids.dtype == np.int32
    assert int(row.position_ids.max()) == 69_999


@given(st.lists(st.lists(st.integers(1, 20), max_size=7).filter(lambda row: sum(row) <= C), min_size=1, max_size=4))
def test_what_is_laid_out_breaks_no_rule(rows: list[list[int]]) -> None:
    assert broken_rule(batch(*rows), pad_id=PAD, vocab_size=100) is None


@given(st.lists(st.lists(st.integers(1, 20), max_size=7).filter(lambda row: sum(row) <= C), min_size=1, max_size=5))
def test_every_column_is_what_placing_slot_by_slot_gives(rows: list[list[int]]) -> None:
    numbers = iter(range(100, 1000))
    examples = [[example(next(numbers), length, all_targets=length % 3 > 0) for length in row] for row in rows]
    found = laid_out(examples)
    for number, row in enumerate(examples):
        ids, mask, positions, cu, names = [], [], [], [0], []
        for name, tokens, targets in row:
            for place in range(len(tokens)):
                ids.append(int(tokens[place]))
                mask.append(bool(targets[place]) and place > 0)
                positions.append(place)
            cu.append(len(ids))
            names.append(name)
        tail = C - len(ids)
        assert found.input_ids[number].tolist() == ids + [PAD] * tail
        assert found.loss_mask[number].tolist() == mask + [False] * tail
        assert found.position_ids[number].tolist() == positions + list(range(tail))
        assert found.cu_seqlens[number].tolist() == cu + [C] * (S + 1 - len(cu))
        assert found.example_ids[number].tolist() == names + [-1] * (S - len(names))
        assert found.num_examples[number] == len(row)
        assert found.num_segments[number] == len(row) + (tail > 0)
        assert found.num_supervised[number] == sum(mask)
        assert found.sum_sq_len[number] == sum(len(tokens) ** 2 for _, tokens, _ in row)


def test_a_first_token_is_never_a_target_even_where_a_piece_begins_on_one() -> None:
    rows = laid_out([[(0, np.array([1, 2], dtype=np.int32), np.array([True, True]))]])
    assert rows.loss_mask[0, :2].tolist() == [False, True]


def test_examples_that_do_not_fit_are_an_error() -> None:
    for row in ([65], [60, 5], [1] * 8, []):
        if row:
            with pytest.raises(ValueError, match="row 0"):
                batch(row)


def broken(rows: RowBatch, name: str, place: object, value: object) -> RowBatch:
    changed = getattr(rows, name).copy()
    changed[place] = value
    return replace(rows, **{name: changed})


@pytest.mark.parametrize(
    ("name", "place", "value", "rule"),
    [
        ("cu_seqlens", (1, 0), 1, "start at 0"),
        ("cu_seqlens", (1, 2), 3, "increase strictly"),
        ("cu_seqlens", (1, 3), 63, "reach the capacity"),
        ("cu_seqlens", (1, 5), 63, "repeat the capacity"),
        ("num_segments", 1, 0, "num_segments"),
        ("num_segments", 1, 9, "num_segments"),
        ("num_segments", 1, 2, "reach the capacity"),
        ("position_ids", (1, 3), 3, "position_ids"),
        ("position_ids", (1, 63), 0, "position_ids"),
        ("loss_mask", (1, 3), True, "first token"),
        ("loss_mask", (1, 5), True, "first token"),
        ("loss_mask", (1, 40), True, "pad tail"),
        ("loss_mask", (1, 1), False, "num_supervised"),
        ("input_ids", (1, 40), 3, "hold the pad id"),
        ("input_ids", (1, 0), 100, "vocabulary"),
        ("input_ids", (1, 0), -1, "vocabulary"),
        ("example_ids", (1, 0), -1, "only the last segment"),
        ("example_ids", (1, 2), 7, "num_examples"),
        ("example_ids", (1, 6), 7, "past the segments in use"),
        ("num_examples", 1, 3, "num_examples"),
        ("sum_sq_len", 1, 14, "sum_sq_len"),
    ],
)
def test_each_broken_rule_is_named_with_its_row(name: str, place: object, value: object, rule: str) -> None:
    rows = batch([5], [3, 2], [64])
    found = broken_rule(broken(rows, name, place, value), pad_id=PAD, vocab_size=100)
    assert found is not None
    assert found[0] == 1
    assert rule in found[1]


def test_every_column_is_under_some_rule() -> None:
    """A column that could be changed without notice would be a hole."""
    covered = {
        "cu_seqlens",
        "num_segments",
        "position_ids",
        "loss_mask",
        "input_ids",
        "example_ids",
        "num_examples",
        "sum_sq_len",
        "num_supervised",
    }
    assert {field.name for field in fields(RowBatch)} == covered


def test_a_pad_id_that_equals_eos_masks_no_real_eos() -> None:
    eos = PAD
    ids, mask = np.array([1, 2, eos], dtype=np.int32), np.array([False, True, True])
    rows = laid_out([[(0, ids, mask)]])
    assert rows.loss_mask[0, :4].tolist() == [False, True, True, False]
