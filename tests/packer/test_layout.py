"""Rows are laid out by the rules of the format, and every broken rule is seen."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer.layout import Placed, lay_out
from packer.schema import RowBatch, broken_rule, broken_rules

C, S, PAD = 64, 8, 9


def example(number: int, length: int, *, all_targets: bool = True) -> tuple[int, np.ndarray, np.ndarray]:
    mask = np.full(length, all_targets)
    mask[0] = False
    return number, np.arange(10, 10 + length, dtype=np.int32), mask


def laid_out(
    rows: list[list[tuple[int, np.ndarray, np.ndarray]]], *, capacity: int = C, max_segments: int = S, align: int = 1
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
    return lay_out(placed, capacity=capacity, max_segments=max_segments, pad_id=PAD, align=align)


def batch(*rows: list[int], align: int = 1) -> RowBatch:
    numbers = iter(range(100, 1000))
    return laid_out([[example(next(numbers), length) for length in row] for row in rows], align=align)


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


def test_an_aligned_row_by_hand() -> None:
    """Every segment of an example is filled up to a multiple of 8; the pad tail stays one segment behind them."""
    rows = batch([3, 8, 9], align=8)
    assert rows.cu_seqlens[0].tolist() == [0, 8, 16, 32, 64, 64, 64, 64, 64]
    assert rows.input_ids[0, :18].tolist() == [10, 11, 12, *[PAD] * 5, *range(10, 18), 10, 11]
    assert rows.loss_mask[0, :9].tolist() == [False, True, True, *[False] * 6]
    assert rows.position_ids[0, :9].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 0]
    assert rows.example_lens is not None
    assert rows.example_lens[0].tolist() == [3, 8, 9, 0, 0, 0, 0, 0]
    assert [
        int(column[0]) for column in (rows.num_segments, rows.num_examples, rows.num_supervised, rows.sum_sq_len)
    ] == [4, 3, 2 + 7 + 8, 8**2 + 8**2 + 16**2]
    assert broken_rule(rows, pad_id=PAD, vocab_size=100, align=8) is None


def test_an_aligned_row_without_a_pad_tail_ends_in_alignment_padding() -> None:
    rows = batch([33, 15], align=16)
    assert rows.cu_seqlens[0, :4].tolist() == [0, 48, 64, 64]
    assert (int(rows.num_segments[0]), int(rows.num_examples[0])) == (2, 2)
    with pytest.raises(ValueError, match="row 0"):
        batch([33, 15, 1], align=16)


def test_rows_that_are_not_aligned_have_no_column_of_lengths() -> None:
    assert batch([3, 8]).example_lens is None


@given(
    st.lists(st.lists(st.integers(1, 20), max_size=7), min_size=1, max_size=4),
    st.sampled_from([2, 4, 8, 16, 32, 64]),
)
def test_what_is_laid_out_aligned_breaks_no_rule(rows: list[list[int]], align: int) -> None:
    kept = []
    for row in rows:
        kept.append([])
        for length in row:
            if sum(-(-one // align) for one in [*kept[-1], length]) <= C // align:
                kept[-1].append(length)
    laid = batch(*kept, align=align)
    assert broken_rule(laid, pad_id=PAD, vocab_size=100, align=align) is None
    assert not (laid.cu_seqlens % align).any()


@pytest.mark.parametrize(
    ("name", "place", "value", "rule"),
    [
        ("example_lens", (1, 0), 0, "rounded up to the alignment"),
        ("example_lens", (1, 0), 9, "rounded up to the alignment"),
        ("example_lens", (1, 0), 2, "alignment padding must hold"),
        ("example_lens", (1, 2), 1, "0 for the pad tail"),
        ("example_lens", (1, 7), 1, "0 for the pad tail"),
        ("input_ids", (1, 3), 5, "alignment padding must hold"),
        ("input_ids", (1, 15), 5, "alignment padding must hold"),
    ],
)
def test_each_broken_rule_of_alignment_is_named_with_its_row(name: str, place: object, value: int, rule: str) -> None:
    rows = batch([5], [3, 2], [64], align=8)
    found = broken_rule(broken(rows, name, place, value), pad_id=PAD, vocab_size=100, align=8)
    assert found is not None
    assert found[0] == 1
    assert rule in found[1]


def test_a_target_on_alignment_padding_is_seen() -> None:
    rows = broken(batch([5], [3, 2], align=8), "loss_mask", (1, 12), True)
    rows = broken(rows, "num_supervised", 1, int(rows.num_supervised[1]) + 1)
    assert broken_rule(rows, pad_id=PAD, vocab_size=100, align=8) == (
        1,
        "loss_mask must be false on alignment padding",
    )


def test_aligned_rows_without_their_lengths_are_seen() -> None:
    rows = replace(batch([8], align=8), example_lens=None)
    found = broken_rule(rows, pad_id=PAD, vocab_size=100, align=8)
    assert found == (0, "example_lens must be there where examples are aligned")


def test_weights_lie_where_their_tokens_do_and_never_on_a_first_one() -> None:
    placed = Placed(
        counts=np.array([2, 1]),
        example_ids=np.array([0, 1, 2]),
        lengths=np.array([3, 2, 4]),
        ids=np.arange(1, 10, dtype=np.int32),
        loss_mask=np.array([1, 0, 1, 1, 1, 0, 1, 1, 0], dtype=bool),
        loss_weights=np.array([9, 0, 0.5, 9, 2, 0, 1, 0.25, 0], dtype=np.float32),
    )
    for align, second in ((1, 3), (8, 8)):
        rows = lay_out(placed, capacity=C, max_segments=S, pad_id=PAD, align=align)
        assert rows.loss_weights is not None
        expected = np.zeros((2, C), dtype=np.float32)
        expected[0, 2], expected[0, second + 1], expected[1, 1], expected[1, 2] = 0.5, 2, 1, 0.25
        assert rows.loss_weights.tolist() == expected.tolist()
        assert broken_rule(rows, pad_id=PAD, vocab_size=100, align=align) is None
        for slot, weight, rule in (
            (2, np.nan, "loss_weights must be from 0.000001 to 1000 on targets"),
            (1, 0.5, "loss_weights must be 0 where the loss mask is false"),
        ):
            wrong = broken(rows, "loss_weights", (0, slot), weight)
            assert broken_rule(wrong, pad_id=PAD, vocab_size=100, align=align) == (0, rule)


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
        "example_lens",
        "loss_weights",
    }
    assert {field.name for field in fields(RowBatch)} == covered


def test_a_pad_id_that_equals_eos_masks_no_real_eos() -> None:
    eos = PAD
    ids, mask = np.array([1, 2, eos], dtype=np.int32), np.array([False, True, True])
    rows = laid_out([[(0, ids, mask)]])
    assert rows.loss_mask[0, :4].tolist() == [False, True, True, False]
