"""`packer verify --deep`: every token against the token store, and a sample of the conversations tokenized again from their source."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import packer
from packer.config import BuildConfig
from packer.verify import Report, verify
from tests.packer.broken_folder import rewrite_rows, set_stored
from tests.support import SAMPLE, TINY, write_jsonl

SHARD = "train/shard-00000.arrow"
STORE = "tokens/part-00000.arrow"
STORE_RULE = "an example's tokens and targets must be the token store's"
SOURCE_RULE = "an example must be what its source gives"
HASH_RULE = "a conversation's content_hash in the token store must be what its source gives"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """60 conversations from a file in the same folder, a blank line before the last."""
    rows = SAMPLE.read_text(encoding="utf-8").splitlines()[:60]
    write_jsonl(tmp_path / "chats.jsonl", [*rows[:-1], "", rows[-1]])
    packer.build(
        BuildConfig(
            datasets=(str(tmp_path / "chats.jsonl"),),
            tokenizer=str(TINY),
            capacity=1024,
            overlong="split",
            out=tmp_path / "packed",
            max_loss=1,
            workers=1,
        )
    )
    return tmp_path / "packed"


def example_row(folder: Path, example: int) -> tuple[int, int]:
    """The shard row and the segment of an example, read by pyarrow alone."""
    ids = pa.ipc.open_file((folder / SHARD).read_bytes()).read_all()["example_ids"].to_pylist()
    return next((row, ids[row].index(example)) for row in range(len(ids)) if example in ids[row])


def examples_of(folder: Path, row: int) -> list[int]:
    table = pa.ipc.open_file((folder / "examples" / "part-00000.arrow").read_bytes()).read_all()
    return [entry["example_id"] for entry in table.to_pylist() if entry["row"] == row]


def deep(report: Report) -> tuple[int, int]:
    assert report.deep is not None
    assert report.deep.source is not None
    return report.deep.source.conversations, report.deep.source.examples


def test_a_changed_line_of_the_source_is_named_with_its_examples(folder: Path) -> None:
    """One word of one answer changes; the sample is of one conversation, but a file that changed is compared whole."""
    assert deep(verify(folder, deep=True, sample=1))[0] == 1
    path = folder.parent / "chats.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines()
    conversation = json.loads(lines[12])
    conversation["messages"][-1]["content"] += " Gladiolus"
    lines[12] = json.dumps(conversation, ensure_ascii=False)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    report = verify(folder, deep=True, sample=1)
    assert report.deep is not None
    assert report.deep.source is not None
    assert report.deep.source.changed == ("chats.jsonl",)
    assert deep(report)[0] == 60
    examples = examples_of(folder, 12)
    # The words were added to the end: where the conversation was cut, only its last piece has changed.
    assert [finding.example for finding in report.findings] == examples[-1:]
    finding = report.findings[0]
    assert (finding.rule, finding.file, finding.source) == (SOURCE_RULE, SHARD, "chats.jsonl:13")
    assert finding.row == example_row(folder, examples[-1])[0]
    assert finding.detail.startswith("token ")


def test_a_line_is_named_as_it_stands_in_the_file_blank_lines_counted(folder: Path) -> None:
    path = folder.parent / "chats.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines()
    assert lines[59] == ""
    lines[60] = "{}"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    report = verify(folder, deep=True)
    assert {finding.source for finding in report.findings} == {"chats.jsonl:61"}
    assert report.findings[0].detail.startswith("the source gives none: no_messages")


def test_a_changed_mask_of_a_row_is_found_by_the_token_store(folder: Path) -> None:
    """A target moves within one example, so that no count and no sum changes."""

    def change(columns: dict[str, np.ndarray]) -> None:
        cu, mask = columns["cu_seqlens"][2], columns["loss_mask"][2]
        mine = mask[cu[0] + 1 : cu[1]]
        on, off = int(mine.argmax()), int((~mine).argmax())
        mine[on], mine[off] = False, True

    rewrite_rows(folder, SHARD, change)
    assert not verify(folder).broken
    report = verify(folder, deep=True)
    finding = next(finding for finding in report.findings if finding.rule == STORE_RULE)
    assert (finding.file, finding.row) == (SHARD, 2)
    assert "target" in finding.detail
    assert {finding.rule for finding in report.findings} == {STORE_RULE, SOURCE_RULE}


def test_a_changed_id_of_the_token_store_is_found_by_the_rows(folder: Path) -> None:
    ids = pa.ipc.open_file((folder / STORE).read_bytes()).read_all()["input_ids"].to_pylist()[5]
    ids[7] = ids[7] ^ 1
    set_stored(folder / STORE, "input_ids", 5, ids)
    assert not verify(folder).broken
    report = verify(folder, deep=True)
    assert {(finding.rule, finding.example) for finding in report.findings} == {(STORE_RULE, examples_of(folder, 5)[0])}
    assert report.findings[0].detail == f"token 7 is {ids[7] ^ 1} in the row, {ids[7]} here"


def test_a_changed_hash_of_the_token_store_is_found_by_the_source(folder: Path) -> None:
    """Nothing but the source can tell: without an eval split no hash decides anything, and the digest is mended."""
    set_stored(folder / STORE, "content_hash", 5, 7)
    assert not verify(folder).broken
    report = verify(folder, deep=True)
    assert [(finding.rule, finding.file, finding.source) for finding in report.findings] == [
        (HASH_RULE, "tokens", "chats.jsonl:6")
    ]


def test_pieces_of_a_long_conversation_are_compared_where_they_were_cut(folder: Path) -> None:
    table = pa.ipc.open_file((folder / "examples" / "part-00000.arrow").read_bytes()).read_all().to_pylist()
    second = next(entry["example_id"] for entry in table if entry["piece"] == 1)
    row, segment = example_row(folder, second)

    def change(columns: dict[str, np.ndarray]) -> None:
        columns["input_ids"][row, columns["cu_seqlens"][row, segment] + 3] ^= 1

    rewrite_rows(folder, SHARD, change)
    report = verify(folder, deep=True)
    assert {finding.rule for finding in report.findings} == {STORE_RULE, SOURCE_RULE}
    assert {finding.example for finding in report.findings} == {second}
    assert all(finding.detail.startswith("token 3 is ") for finding in report.findings)


def test_a_source_that_is_gone_is_said_and_not_called_broken(folder: Path) -> None:
    (folder.parent / "chats.jsonl").unlink()
    report = verify(folder, deep=True)
    assert not report.broken
    assert deep(report) == (0, 0)
    assert report.deep is not None
    assert report.deep.stored == report.examples
    assert report.deep.source is not None
    assert [one.source for one in report.deep.source.missing] == ["chats.jsonl"]
    assert "No such file" in report.deep.source.missing[0].why


def test_broken_rows_are_not_compared_any_further(folder: Path) -> None:
    def change(columns: dict[str, np.ndarray]) -> None:
        columns["position_ids"][0, 5] = 0

    rewrite_rows(folder, SHARD, change)
    report = verify(folder, deep=True)
    assert report.broken == 1
    assert report.deep is not None
    assert report.deep.source is None


def test_a_build_of_many_parts_and_two_sources_is_compared_whole_wherever_it_is_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Paths of the command line need not hold where the check is started: the log has them from the root."""
    monkeypatch.setattr("packer.parts._PART_ROWS", 7)
    monkeypatch.chdir(tmp_path)
    rows = SAMPLE.read_text(encoding="utf-8").splitlines()
    write_jsonl(tmp_path / "a.jsonl", [*rows[:20], *["{"] * 8, *rows[20:30]])
    write_jsonl(tmp_path / "b.jsonl", rows[30:50])
    packer.build(
        BuildConfig(
            mix=(("a.jsonl", Fraction(3, 2)), ("b.jsonl", Fraction(2, 3))),
            tokenizer=str(TINY),
            capacity=512,
            overlong="truncate",
            eval_fraction=Fraction(1, 4),
            out=Path("packed"),
            max_loss=Fraction(1),
            workers=1,
        )
    )
    assert len(list((tmp_path / "packed" / "tokens").iterdir())) == 9
    monkeypatch.chdir("/")
    report = verify(tmp_path / "packed", deep=True)
    assert report.findings == ()
    assert report.deep is not None
    assert report.deep.source is not None
    assert (report.deep.stored, report.deep.source.examples) == (report.examples, report.examples)
    assert report.deep.source.missing == ()


def test_an_answer_that_is_cut_in_its_middle_has_no_target_where_a_piece_begins(tmp_path: Path) -> None:
    rows = SAMPLE.read_text(encoding="utf-8").splitlines()[:12]
    source = write_jsonl(tmp_path / "chats.jsonl", rows)
    config = BuildConfig(
        datasets=(str(source),), tokenizer=str(TINY), capacity=64, overlong="split", out=tmp_path / "packed", max_loss=1
    )
    packer.build(config)
    report = verify(tmp_path / "packed", deep=True)
    assert not report.broken
    assert report.examples > 5 * len(rows)
    assert deep(report) == (len(rows), report.examples)
