"""Windows are valid rows cut from real ones, whatever the corpus, and hold what a proof has to see."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from packer.schema import RowBatch, broken_rule
from packer.types import Row
from tests.trainer.check.benches import SHORT, window
from tests.trainer.shards_fixture import CAPACITY, Example, random_rows, write_corpus
from trainer.check.windows import assemble, cut_windows, owners


def broken(row: Row) -> tuple[int, str] | None:
    columns = {field.name: getattr(row, field.name) for field in dataclasses.fields(RowBatch)}
    columns = {name: np.asarray(value)[None] for name, value in columns.items() if value is not None}
    return broken_rule(RowBatch(**columns), pad_id=0, vocab_size=97)


def test_windows_are_valid_rows_of_one_size(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "packed", rows=random_rows(20, seed=0))
    cut = cut_windows(corpus)
    assert len(cut) == 5
    assert [broken(each.row) for each in cut] == [None] * 5
    assert {len(each.row.input_ids) for each in cut} == {CAPACITY}


def test_together_they_hold_segments_of_one_two_and_three_tokens_a_pad_tail_and_a_row_without(tmp_path: Path) -> None:
    cut = cut_windows(write_corpus(tmp_path / "packed", rows=random_rows(20, seed=0)))
    assert {1, 2, 3} <= set(cut[0].lengths)
    assert cut[0].pad > 0
    assert cut[1].pad == 0
    assert [each.row.num_supervised > 0 for each in cut] == [True] * 5
    assert (
        cut_windows(write_corpus(tmp_path / "again", rows=random_rows(20, seed=0)), quick=True)[0].segments
        == cut[0].segments
    )


def test_in_rows_of_more_slots_some_segments_pass_a_chunk_of_64() -> None:
    assert sum(length > 64 for length in window(SHORT).segments) >= 2


@pytest.mark.parametrize("lengths", [[1], [2, 1], [64]])
def test_a_corpus_of_one_row_is_enough(tmp_path: Path, lengths: list[int]) -> None:
    row = [Example(ids=tuple(range(1, length + 1)), mask=(False,) * length) for length in lengths]
    cut = cut_windows(write_corpus(tmp_path / "packed", rows=[row]))
    assert [broken(each.row) for each in cut] == [None] * 5


def test_pieces_are_stretches_of_the_examples(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "packed", rows=random_rows(6, seed=3))
    first = cut_windows(corpus)[2]
    row = corpus[0]
    text = " ".join(map(str, row.input_ids.tolist()))
    for piece in first.pieces:
        assert " ".join(map(str, piece.ids.tolist())) in text


def test_owners_number_the_segments_of_all_windows_pad_tails_among_them() -> None:
    windows = [window([2, 1], slots=64), window([64], slots=64)]
    counted = np.bincount(owners(windows).numpy()).tolist()
    assert counted == [2, 1, 61, 64]


def test_what_does_not_fit_is_a_bug() -> None:
    with pytest.raises(ValueError, match="do not fit"):
        assemble(window([40]).pieces * 2, slots=64, pad_id=0)
