"""`--group-by`: rows of one group stand on one side of the eval split; sides are worked out here from a hash of the group's text alone."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
import xxhash

import packer
from packer.config import BuildConfig
from packer.errors import UserError
from packer.manifest import load_manifest
from packer.repacking import RepackConfig, repack
from packer.sources.groups import column_group
from packer.verify import verify
from tests.packer.broken_folder import part_digest, set_stored
from tests.support import TINY, write_jsonl

NO_GROUP = "no value to --group-by (grouped by their own content)"
TENTH = Fraction(1, 10)
GROUP_RULE = "a conversation's group_hash in the token store must be what its source gives"


def is_eval(text: str, share: float = 0.1) -> bool:
    return bool(xxhash.xxh3_64_intdigest(json.dumps(text).encode()) / 2**64 < share)


def chat(turns: int, topic: str) -> dict[str, Any]:
    messages = [{"role": "system", "content": "Be brief."}]
    for turn in range(turns):
        messages.append({"role": "user", "content": topic if turn == 0 else f"and {turn}?"})
        messages.append({"role": "assistant", "content": f"{topic} {turn}."})
    return {"messages": messages}


def chains() -> list[dict[str, Any]]:
    """50 conversations, each saved after each of its four turns."""
    return [chat(turns, f"question {number}") for turns in range(1, 5) for number in range(50)]


def config(tmp_path: Path, file: Path, **options: Any) -> BuildConfig:
    options = {"eval_fraction": TENTH, "capacity": 256, "out": tmp_path / "packed", **options}
    return BuildConfig(datasets=(str(file),), tokenizer=str(TINY), workers=1, **options)


def sides(folder: Path) -> dict[int, set[bool]]:
    """Whether each row of the source is in the eval split, as examples/ has it."""
    found: dict[int, set[bool]] = defaultdict(set)
    for example in pa.ipc.open_file((folder / "examples" / "part-00000.arrow").read_bytes()).read_all().to_pylist():
        found[example["row"]].add(example["split"] == "eval")
    return found


def store(folder: Path) -> pa.Table:
    return pa.ipc.open_file((folder / "tokens" / "part-00000.arrow").read_bytes()).read_all()


def hold(folder: Path) -> None:
    report = verify(folder, deep=True)
    assert not report.findings
    assert report.deep is not None
    assert report.deep.source is not None
    assert report.deep.source.conversations > 0


def test_a_conversation_saved_after_each_turn_stands_on_one_side(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "chats.jsonl", chains())
    plain = config(tmp_path, tmp_path / "chats.jsonl", out=tmp_path / "plain")
    packer.build(plain)
    apart = sides(tmp_path / "plain")
    assert sum(len(set.union(*(apart[number + 50 * turn] for turn in range(4)))) == 2 for number in range(50)) > 10

    packer.build(config(tmp_path, tmp_path / "chats.jsonl", group_by="first-user"))
    expected = {row: {is_eval(f"question {row % 50}")} for row in range(200)}
    assert {True} in expected.values()
    assert sides(tmp_path / "packed") == expected
    assert load_manifest(tmp_path / "packed").options["group_by"] == "first-user"
    hold(tmp_path / "packed")


def test_pieces_and_turns_of_a_row_follow_its_group(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "chats.jsonl", chains())
    options: dict[str, Any] = {"reasoning": "every-turn", "capacity": 64, "overlong": "split", "max_loss": 1}
    packer.build(config(tmp_path, tmp_path / "chats.jsonl", group_by="first-user", **options))
    assert sides(tmp_path / "packed") == {row: {is_eval(f"question {row % 50}")} for row in range(200)}
    hold(tmp_path / "packed")


@pytest.mark.parametrize("kind", ["csv", "parquet", "arrow", "jsonl"])
def test_rows_with_one_value_of_a_column_stand_on_one_side(tmp_path: Path, kind: str) -> None:
    rows = [{"prompt": f"q {n}", "response": f"a {n}", "user": n % 40 + 1000} for n in range(200)]
    file = tmp_path / f"chats.{kind}"
    table = pa.Table.from_pylist(rows)
    if kind == "csv":
        pyarrow.csv.write_csv(table, file)
    elif kind == "parquet":
        pyarrow.parquet.write_table(table, file)
    elif kind == "arrow":
        with pa.ipc.new_file(str(file), table.schema) as writer:
            writer.write_table(table)
    else:
        write_jsonl(file, rows)
    packer.build(config(tmp_path, file, group_by="user"))
    expected = {row: {is_eval(str(row % 40 + 1000))} for row in range(200)}
    assert {True} in expected.values()
    assert sides(tmp_path / "packed") == expected
    # The column was read, so nothing may say that it was not.
    assert not load_manifest(tmp_path / "packed").ledger.notes
    hold(tmp_path / "packed")


def test_a_prompt_that_is_text_is_the_first_user_message(tmp_path: Path) -> None:
    rows = [{"prompt": f"q {n % 40}", "completion": f" a {n}"} for n in range(200)]
    write_jsonl(tmp_path / "chats.jsonl", rows)
    packer.build(config(tmp_path, tmp_path / "chats.jsonl", group_by="first-user"))
    assert sides(tmp_path / "packed") == {row: {is_eval(f"q {row % 40}")} for row in range(200)}


def test_a_row_without_a_group_stands_by_its_content_and_is_counted(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [chat(1, f"question {number}") for number in range(100)]
    for row, value in zip(rows, (None, "", float("nan")), strict=False):
        row["user"] = value
    rows[50]["user"] = "u"
    write_jsonl(tmp_path / "chats.jsonl", rows)
    packer.build(config(tmp_path, tmp_path / "chats.jsonl", group_by="user"))
    packer.build(config(tmp_path, tmp_path / "chats.jsonl", out=tmp_path / "plain"))
    assert sides(tmp_path / "packed") == {**sides(tmp_path / "plain"), 50: {is_eval("u")}}
    assert load_manifest(tmp_path / "packed").ledger.notes == {NO_GROUP: {"user": 99}}


def test_values_that_tools_write_in_several_ways_are_one_group() -> None:
    values: list[tuple[object, str | None]] = [
        (7, "7"),
        ("7", "7"),
        (7.0, "7"),
        (7.5, "7.5"),
        (True, "true"),
        ({"b": 1, "a": [None]}, '{"a": [null], "b": 1}'),
        (float("inf"), "Infinity"),
        (float("nan"), None),
        ("", None),
        (0, "0"),
    ]
    assert [column_group({"c": value}, "c") for value, _ in values] == [text for _, text in values]


def test_a_repack_keeps_the_sides(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "chats.jsonl", chains())
    packer.build(config(tmp_path, tmp_path / "chats.jsonl", group_by="first-user"))
    repack(RepackConfig(source=tmp_path / "packed", out=tmp_path / "other", capacity=512, workers=1))
    assert sides(tmp_path / "other") == sides(tmp_path / "packed")
    assert load_manifest(tmp_path / "other").options["group_by"] == "first-user"
    hold(tmp_path / "other")


def test_the_store_has_the_column_only_where_it_was_asked_for(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "chats.jsonl", chains())
    packer.build(config(tmp_path, tmp_path / "chats.jsonl", out=tmp_path / "plain"))
    packer.build(config(tmp_path, tmp_path / "chats.jsonl", group_by="first-user"))
    plain, grouped = store(tmp_path / "plain"), store(tmp_path / "packed")
    assert "group_by" not in load_manifest(tmp_path / "plain").options
    assert grouped.drop_columns("group_hash").equals(plain)
    assert [one.schema.metadata[b"store_version"] for one in (plain, grouped)] == [b"1", b"3"]
    for table in (plain, grouped):
        assert json.loads(table.schema.metadata[b"head"])["digest"] == part_digest(table, 0)


def test_a_changed_group_hash_is_found(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "chats.jsonl", chains())
    packer.build(config(tmp_path, tmp_path / "chats.jsonl", group_by="first-user"))
    row = next(row for row in range(200) if not is_eval(f"question {row % 50}"))
    # Still on its side, so that only the source can tell.
    set_stored(tmp_path / "packed" / "tokens" / "part-00000.arrow", "group_hash", row, 2**64 - 1)
    assert not verify(tmp_path / "packed").broken
    found = verify(tmp_path / "packed", deep=True).findings
    assert [(one.rule, one.source) for one in found] == [(GROUP_RULE, f"chats.jsonl:{row + 1}")]
    set_stored(tmp_path / "packed" / "tokens" / "part-00000.arrow", "group_hash", row, 0)
    assert {one.rule for one in verify(tmp_path / "packed").findings} == {
        "an example's split must be the token store's"
    }


@pytest.mark.parametrize(("first", "second"), [("first-user", None), (None, "first-user"), ("first-user", "user")])
def test_a_folder_of_other_groups_is_another_build(tmp_path: Path, first: str | None, second: str | None) -> None:
    write_jsonl(tmp_path / "chats.jsonl", [{**row, "user": 1} for row in chains()])
    build = config(tmp_path, tmp_path / "chats.jsonl", group_by=first)
    packer.build(build)
    with pytest.raises(UserError, match=r"holds another build \(other group by\)"):
        packer.build(replace(build, group_by=second))


def test_a_mistyped_column_and_an_option_without_effect_are_refused(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "chats.jsonl", [{**row, "user_id": 1} for row in chains()])
    for reasoning in ("template", "every-turn"):
        with pytest.raises(UserError, match="--group-by userid: read from no row") as caught:
            packer.build(config(tmp_path, tmp_path / "chats.jsonl", group_by="userid", reasoning=reasoning))
        assert caught.value.hint == "did you mean --group-by user_id?"
    with pytest.raises(UserError, match="--group-by user_id: only --eval-fraction sets groups of rows aside"):
        config(tmp_path, tmp_path / "chats.jsonl", group_by="user_id", eval_fraction=Fraction(0))
