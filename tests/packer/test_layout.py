"""Rows are laid out by the rules of the format, and every broken rule is seen."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer.layout import lay_out
from packer.schema import RowBatch, broken_rule, broken_rules

C, S, PAD = 64, 8, 9


def example(number: int, length: int, *, all_targets: bool = True) -> tuple[int, np.ndarray, np.ndarray]:
    mask = np.full(length, all_targets)
    mask[0] = False
    return number, np.arange(10, 10 + length, dtype=np.int32), mask


def batch(*rows: list[int]) -> RowBatch:
    numbers = iter(range(100, 1000))
    return lay_out(
        [[example(next(numbers), length) for length in row] for row in rows], capacity=C, max_segments=S, pad_id=PAD
    )


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
    row = lay_out([[example(0, 70_000)]], capacity=70_016, max_segments=S, pad_id=PAD)
    assert row.position_ids.dtype == np.int32
    assert int(row.position_ids.max()) == 69_999


@given(st.lists(st.lists(st.integers(1, 20), max_size=7).filter(lambda row: sum(row) <= C), min_size=1, max_size=4))
def test_what_is_laid_out_breaks_no_rule(rows: list[list[int]]) -> None:
    assert broken_rule(batch(*rows), pad_id=PAD, vocab_size=100) is None


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
        ("example_ids", (1, 2), -2, "-1 for the pad tail"),
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


def test_every_broken_row_is_named_whatever_is_wrong_with_its_neighbours() -> None:
    rows = batch([5], [3, 2], [64], [10, 20])
    rows = broken(rows, "cu_seqlens", (0, 0), 1)
    rows = broken(rows, "cu_seqlens", (2, 1), 63)
    rows = broken(rows, "position_ids", (1, 4), 7)
    rows = broken(rows, "sum_sq_len", 3, 0)
    found = broken_rules(rows, pad_id=PAD, vocab_size=100)
    assert [(row, rule.split()[0]) for row, rule in found] == [
        (0, "cu_seqlens"),
        (2, "cu_seqlens"),
        (1, "position_ids"),
        (3, "sum_sq_len"),
    ]
    assert broken_rule(rows, pad_id=PAD, vocab_size=100) == found[0]


@pytest.mark.parametrize("by", [1, -1, 30_000])
def test_positions_that_are_shifted_from_any_slot_on_are_seen(by: int) -> None:
    """The check goes by differences between neighbours: a stretch that is off by one differs from what it should be at its ends only."""
    rows = batch([20, 1, 30])
    cu = rows.cu_seqlens[0].tolist()
    for slot in range(C):
        for end in range(slot + 1, 1 + min(bound for bound in cu if bound > slot)):
            positions = rows.position_ids.copy()
            positions[0, slot:end] += np.array(by).astype(np.uint16)
            found = broken_rule(replace(rows, position_ids=positions), pad_id=PAD, vocab_size=100)
            assert found == (0, "position_ids must restart at 0 in each segment"), (slot, end)


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
    rows = lay_out([[(0, ids, mask)]], capacity=C, max_segments=S, pad_id=eos)
    assert rows.loss_mask[0, :4].tolist() == [False, True, True, False]
