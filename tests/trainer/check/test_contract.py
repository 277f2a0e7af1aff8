"""A batch that says of its rows what is not true of them is told apart, word for word."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest
import torch

from packer.errors import UserError
from tests.support import TINY
from tests.trainer.check.benches import window, windows
from tests.trainer.shards_fixture import random_rows, write_corpus, write_model
from trainer.check.contract import contract, layout_faults
from trainer.check.subject import rows_to_batch
from trainer.config import RunConfig
from trainer.prepare import Prepared, prepare
from trainer.segments import Segments

CPU = torch.device("cpu")


def batch_of(lengths: list[int]):  # type: ignore[no-untyped-def]
    made = [window(lengths, slots=64)]
    return rows_to_batch([each.row for each in made], CPU), made


def test_the_batches_of_a_run_are_right() -> None:
    made = windows()
    assert layout_faults(rows_to_batch([each.row for each in made], CPU), made) == []


def test_a_row_of_weight_0_has_no_targets_and_that_is_noticed() -> None:
    made = windows()
    batch = rows_to_batch([each.row for each in made], CPU, [True, False])
    (fault,) = layout_faults(batch, made)
    assert "where the loss mask has" in fault


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ([10, 21, 33], "a boundary lies at 31 instead of 30 (off by one)"),
        ([10, 15, 39], "a boundary lies at 25 instead of 30"),
        ([30, 34], "1 of 2 boundaries between segments are missing, the first at 10"),
        ([10, 54], "the boundary at 30 is missing: the pad tail is glued to the last example"),
        ([10, 20, 4, 30], "a boundary at 34 lies inside a segment"),
    ],
)
def test_wrong_boundaries_are_described(wrong: list[int], said: str) -> None:
    batch, made = batch_of([10, 20])
    faults = layout_faults(dataclasses.replace(batch, segments=Segments.from_lengths(wrong)), made)
    assert faults[0] == f"cu_seqlens: {said}"


def test_each_field_of_a_batch_is_looked_at() -> None:
    batch, made = batch_of([10, 20])
    segments = batch.segments
    for changed, said in (
        (dataclasses.replace(batch, input_ids=batch.input_ids + 1), "input_ids are not the tokens"),
        (
            dataclasses.replace(batch, position_ids=batch.position_ids + 1),
            "slot 0 has 1 where its place in segment 0 is 0",
        ),
        (dataclasses.replace(batch, targets=batch.targets + 1), "which the loss mask does not say"),
        (dataclasses.replace(batch, positions=batch.positions + 1), "predict"),
        (dataclasses.replace(batch, count=batch.count - 1), f"{batch.count - 1} where the loss mask has {batch.count}"),
        (
            dataclasses.replace(batch, segments=dataclasses.replace(segments, seq_idx=segments.seq_idx * 0)),
            "seq_idx does not number",
        ),
        (
            dataclasses.replace(batch, segments=dataclasses.replace(segments, max_segment_len=33)),
            "max_segment_len is 33, a segment has 34 tokens",
        ),
        *(
            (
                dataclasses.replace(
                    batch, segments=dataclasses.replace(segments, **{name: getattr(segments, name)[[0, 1, -1]]})
                ),
                f"{said}: the boundary at 30 is missing",
            )
            for name, said in (
                ("cu_seqlens_cpu", "cu_seqlens on the host"),
                ("boundaries", "the boundaries that layers are handed"),
                ("boundaries_cpu", "the boundaries that layers are handed on the host"),
            )
        ),
    ):
        faults = layout_faults(changed, made)
        assert len(faults) == 1
        assert said in faults[0]


@pytest.fixture
def prepared(tmp_path: Path) -> Prepared:
    write_corpus(tmp_path / "packed", rows=random_rows(4, seed=0))
    write_model(tmp_path / "tiny")
    return prepare(RunConfig(shards=str(tmp_path / "packed"), model=str(tmp_path / "tiny"), steps=1))


def test_data_that_fits_the_model_has_nothing_to_be_said_of(prepared: Prepared) -> None:
    notes = contract(prepared, rows=range(4), embedding=112, positions=256, stops=1)
    assert [text for _, text in notes if "tokenizer.json" not in text] == []


@pytest.mark.parametrize(
    ("embedding", "positions", "said"),
    [(96, 256, "token id 96, past the 96 rows"), (112, 30, "knows 30 positions"), (1, 256, "token id 96")],
)
def test_ids_and_lengths_past_the_model_are_refused(
    prepared: Prepared, embedding: int, positions: int, said: str
) -> None:
    with pytest.raises(UserError, match=said):
        contract(prepared, rows=range(4), embedding=embedding, positions=positions, stops=1)


def test_a_model_that_stops_at_another_token_is_noted(prepared: Prepared) -> None:
    notes = contract(prepared, rows=[], embedding=112, positions=None, stops=[7, 8])
    assert "the model stops at 7, 8, but what is trained on ends with 1" in notes[-1][1]


def test_another_tokenizer_is_refused(prepared: Prepared, tmp_path: Path) -> None:
    (tmp_path / "packed" / "tokenizer").mkdir()
    for folder in ("packed/tokenizer", "tiny"):
        shutil.copyfile(TINY / "tokenizer.json", tmp_path / folder / "tokenizer.json")
    text = (tmp_path / "tiny" / "tokenizer.json").read_text()
    (tmp_path / "tiny" / "tokenizer.json").write_text(text.replace("<|im_end|>", "<|im_over|>"))
    with pytest.raises(UserError, match="not the tokenizer of"):
        contract(prepared, rows=[], embedding=112, positions=None, stops=1)


def test_a_row_that_breaks_the_format_is_named(prepared: Prepared, tmp_path: Path) -> None:
    shard = tmp_path / "packed" / "train" / "shard-00000.arrow"
    data = bytearray(shard.read_bytes())
    ids = prepared.corpus[0].input_ids.tobytes()
    at = bytes(data).index(ids)
    data[at : at + 4] = (120).to_bytes(4, "little")
    shard.write_bytes(bytes(data))
    again = prepare(prepared.config)
    with pytest.raises(UserError, match=r"shard-00000\.arrow, row 0: token ids must lie in the vocabulary"):
        contract(again, rows=[0], embedding=112, positions=None, stops=1)
