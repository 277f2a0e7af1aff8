"""`packer diff`: equal builds are equal, one changed thing is named as the cause, and the examples it changed are counted and named."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import packer
from packer.config import BuildConfig
from packer.diff import MOST_NAMED, Difference, diff
from packer.errors import UserError
from tests.packer.broken_folder import edit_manifest, rewrite_rows
from tests.support import SAMPLE, TINY, chat, run_module, write_jsonl

ROWS = [json.loads(line) for line in SAMPLE.read_text(encoding="utf-8").splitlines()[:50]]


def build(place: Path, rows: list[Any] = ROWS, *, name: str = "chats.jsonl", **options: Any) -> Path:
    place.mkdir(parents=True, exist_ok=True)
    source = write_jsonl(place / name, rows)
    config: dict[str, Any] = {
        "datasets": (str(source),),
        "tokenizer": str(TINY),
        "capacity": 4096,
        "out": place / "packed",
        "max_loss": 1,
        "workers": 1,
    }
    packer.build(BuildConfig(**{**config, **options}))
    return place / "packed"


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("first"))


def changed(difference: Difference, subject: str) -> dict[str, tuple[str, str]]:
    return {change.what: (change.a, change.b) for change in difference.changes if change.subject == subject}


def counts(difference: Difference) -> tuple[int, int, int, int, int]:
    """same, added, removed, ids changed, mask changed."""
    examples = difference.examples
    assert examples is not None
    return examples.same, examples.added, examples.removed, examples.ids_changed, examples.mask_changed


def test_a_build_and_its_repetition_are_the_same_bytes(first: Path, tmp_path: Path) -> None:
    difference = diff(first, build(tmp_path))
    assert (difference.verdict, difference.equal, difference.changes, difference.examples) == (
        "same bytes",
        True,
        (),
        None,
    )


def test_the_same_rows_in_another_order_are_told_from_other_rows(first: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(first, tmp_path / "packed"))

    def turned(columns: dict[str, Any]) -> None:
        for name in columns:
            columns[name] = columns[name][::-1].copy()

    rewrite_rows(other, "train/shard-00000.arrow", turned)
    difference = diff(first, other)
    assert (difference.verdict, difference.equal) == ("same rows in another order", True)
    assert counts(difference) == (len(ROWS), 0, 0, 0, 0)

    def one_token(columns: dict[str, Any]) -> None:
        columns["input_ids"][0, 1] ^= 1

    rewrite_rows(other, "train/shard-00000.arrow", one_token)
    difference = diff(first, other)
    assert (difference.verdict, difference.equal) == ("different", False)
    assert counts(difference) == (len(ROWS) - 1, 0, 0, 1, 0)


def test_one_edited_answer_is_one_example_and_its_line(first: Path, tmp_path: Path) -> None:
    rows = [dict(row) for row in ROWS]
    messages = rows[12]["messages"]
    rows[12] = {
        **rows[12],
        "messages": [*messages[:-1], {**messages[-1], "content": messages[-1]["content"] + " Yes."}],
    }
    difference = diff(first, build(tmp_path, rows))
    assert counts(difference) == (len(ROWS) - 1, 0, 0, 1, 0)
    assert difference.examples is not None
    (named,) = difference.examples.named
    assert (named.kind, named.origin, named.a, named.b) == ("ids changed", "chats.jsonl row 12", 12, 12)
    before, after = (examples(folder)[12]["tokens"] for folder in (first, tmp_path / "packed"))
    # What was there stays; the new words stand where the token that ends the turn was.
    assert named.detail.startswith(f"{before} tokens → {after}, first at token ")
    assert list(changed(difference, "sources")) == ["chats.jsonl: digest"]


def examples(folder: Path) -> list[dict[str, Any]]:
    return list(pa.ipc.open_file((folder / "examples" / "part-00000.arrow").read_bytes()).read_all().to_pylist())


def test_rows_added_and_removed_are_counted_and_the_first_are_named(first: Path, tmp_path: Path) -> None:
    longer = build(tmp_path, ROWS + ROWS[:20])
    difference = diff(first, longer)
    assert counts(difference) == (len(ROWS), 20, 0, 0, 0)
    assert difference.examples is not None
    assert [one.origin for one in difference.examples.named] == [f"chats.jsonl row {50 + n}" for n in range(MOST_NAMED)]
    assert changed(difference, "sources")["chats.jsonl: conversations"] == ("50", "70")
    back = diff(longer, first)
    assert counts(back) == (len(ROWS), 0, 20, 0, 0)
    assert changed(back, "ledger")["conversations: read"] == ("70", "50")


def moved_files(difference: Difference) -> list[tuple[str, str, int]]:
    assert difference.examples is not None
    return [(one.a, one.b, one.examples) for one in difference.examples.other_source]


@pytest.mark.parametrize("stored", [True, False])
def test_rows_under_another_file_name_are_matched_by_content(first: Path, tmp_path: Path, stored: bool) -> None:
    edited = chat("Is 2 even?", "Yes.")
    # The first is gone, the others stand in another order behind a new one.
    other = build(tmp_path / "b", [edited, *ROWS[:0:-1]], name="b.jsonl", token_store=stored)
    difference = diff(first, other)
    assert counts(difference) == (len(ROWS) - 1, 1, 1, 0, 0)
    assert moved_files(difference) == [("chats.jsonl", "b.jsonl", len(ROWS) - 1)]
    assert difference.examples is not None
    assert [one.origin for one in difference.examples.named] == ["chats.jsonl row 0", "b.jsonl row 0"]
    run = run_module("packer", ["diff", first, other], cwd=tmp_path)
    assert run.returncode == 1
    assert "  49 examples are in b.jsonl that were in chats.jsonl\n  1 removed\n" in run.stdout


@pytest.mark.parametrize(("stored", "expected"), [(True, (0, 0, 0, 50, 0)), (False, (0, 50, 50, 0, 0))])
def test_other_ids_are_matched_by_what_was_said_where_there_is_a_store(
    first: Path, tmp_path: Path, stored: bool, expected: tuple[int, ...]
) -> None:
    template = (TINY / "chat_template.jinja").read_text(encoding="utf-8")
    (tmp_path / "t.jinja").write_text(template.replace("<|im_start|>", "<|im_start|>the "))
    options = {"name": "b.jsonl", "chat_template": tmp_path / "t.jinja", "token_store": stored}
    difference = diff(first, build(tmp_path / "b", ROWS[::-1], **options))
    assert counts(difference) == expected
    assert moved_files(difference) == ([("chats.jsonl", "b.jsonl", 50)] if stored else [])
    if stored:
        assert difference.examples is not None
        pairs = [(one.a, one.b) for one in difference.examples.named]
        assert pairs == [(number, len(ROWS) - 1 - number) for number in range(MOST_NAMED)]


def test_a_conversation_that_stands_twice_is_matched_twice(tmp_path: Path) -> None:
    one, two = chat("One?", "1."), chat("Two?", "2.")
    a, b = build(tmp_path / "a", [one, one, two]), build(tmp_path / "b", [two, one, two, one, one], name="b.jsonl")
    assert counts(diff(a, b)) == (3, 2, 0, 0, 0)
    assert counts(diff(b, a)) == (3, 0, 2, 0, 0)


def test_files_that_were_joined_and_copies_by_weight_are_matched(tmp_path: Path) -> None:
    half = str(write_jsonl(tmp_path / "half.jsonl", ROWS[30:]))
    a = build(tmp_path / "a", ROWS[:30], mix=((half, 2),))
    b = build(tmp_path / "b", ROWS)
    # The second copy of each of half.jsonl is not in b.
    assert counts(diff(a, b)) == (50, 0, 20, 0, 0)
    assert moved_files(diff(a, b)) == [("half.jsonl", "chats.jsonl", 20)]


def test_turns_and_pieces_are_matched_each_with_its_own(tmp_path: Path) -> None:
    options: dict[str, Any] = {"reasoning": "every-turn", "capacity": 512, "overlong": "split"}
    a, b = (
        build(tmp_path / name, rows, name=name, **options)
        for name, rows in (("a.jsonl", ROWS), ("b.jsonl", ROWS[::-1]))
    )
    count = len(examples(a))
    assert count > len(ROWS)
    assert counts(diff(a, b)) == (count, 0, 0, 0, 0)
    assert moved_files(diff(a, b)) == [("a.jsonl", "b.jsonl", count)]


def test_pieces_of_a_conversation_that_stands_twice_are_matched_by_their_number(tmp_path: Path) -> None:
    # Words that do not repeat, so that no two pieces have the same ids.
    rows = [chat("Count.", " ".join(map(str, range(1000))))] * 2
    a = build(tmp_path / "a", rows, name="a.jsonl", capacity=512, overlong="split")
    b = build(tmp_path / "b", rows, name="b.jsonl", capacity=1024, overlong="split")
    many, few = (len(examples(folder)) // 2 for folder in (a, b))
    assert 2 <= few < many
    difference = diff(a, b)
    assert difference.examples is not None
    pairs = {(one.a, one.b) for one in difference.examples.named if one.kind == "ids changed"}
    assert pairs == {(row * many + piece, row * few + piece) for row in range(2) for piece in range(few)}


def test_another_mask_is_no_other_text(first: Path, tmp_path: Path) -> None:
    difference = diff(first, build(tmp_path, train_on="last"))
    several = sum(sum(message["role"] == "assistant" for message in row["messages"]) > 1 for row in ROWS)
    assert 0 < several < len(ROWS)
    assert counts(difference) == (len(ROWS) - several, 0, 0, 0, several)
    assert changed(difference, "options") == {"train_on": ("assistant", "last")}
    assert difference.examples is not None
    named = difference.examples.named[0]
    place = int(named.origin.rpartition(" ")[2])
    targets = [examples(folder)[place]["supervised"] for folder in (first, tmp_path / "packed")]
    assert named.detail.startswith(f"{targets[0]} targets → {targets[1]}, first at token ")


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"seed": 1}, {"seed": ("0", "1")}),
        ({"capacity": 8192}, {"capacity": ("4096", "8192")}),
        ({"strategy": "bfd"}, {"strategy": ("optimal", "bfd")}),
    ],
)
def test_the_option_that_differs_is_the_one_named(
    first: Path, tmp_path: Path, options: dict[str, Any], what: object
) -> None:
    difference = diff(first, build(tmp_path, shard_rows=packer.open(first).manifest.shard_rows, **options))
    assert changed(difference, "options") == what
    # The examples that are in both are the same in both, wherever they lie.
    assert counts(difference)[3:] == (0, 0)


def test_examples_in_pieces_and_copies_are_matched_by_both(tmp_path: Path) -> None:
    folders = []
    for weight, policy in ((2, "split"), (3, "split")):
        source = write_jsonl(tmp_path / "chats.jsonl", ROWS)
        out = tmp_path / f"{weight}"
        packer.build(
            BuildConfig(
                mix=((str(source), weight),),  # type: ignore[arg-type]
                tokenizer=str(TINY),
                capacity=512,
                overlong=policy,  # type: ignore[arg-type]
                out=out,
                max_loss=1,
                workers=1,
            )
        )
        folders.append(out)
    two, three = (len(examples(folder)) for folder in folders)
    assert three * 2 == two * 3
    assert counts(diff(*folders)) == (two, three - two, 0, 0, 0)


def test_a_template_is_told_by_its_first_lines_that_differ(first: Path, tmp_path: Path) -> None:
    template = (TINY / "chat_template.jinja").read_text(encoding="utf-8")
    (tmp_path / "t.jinja").write_text(template.replace("<|im_start|>", "<|im_start|>the ") + "{# one more line #}\n")
    difference = diff(first, build(tmp_path, chat_template=tmp_path / "t.jinja"))
    assert "digest" in changed(difference, "template")
    assert not changed(difference, "tokenizer")
    old = [line[1:] for line in difference.template if line.startswith("-")]
    assert old
    assert all(line in template.splitlines() for line in old)
    assert any("the " in line for line in difference.template if line.startswith("+"))
    assert counts(difference)[3] == len(ROWS)


def test_a_tokenizer_is_told_by_the_part_that_differs(first: Path, tmp_path: Path) -> None:
    tokenizer = Path(shutil.copytree(TINY, tmp_path / "tokenizer"))
    path = tokenizer / "tokenizer.json"
    document = json.loads(path.read_text(encoding="utf-8"))
    document["model"]["merges"] = document["model"]["merges"][:-1]
    path.write_text(json.dumps(document), encoding="utf-8")
    difference = diff(first, build(tmp_path, tokenizer=str(tokenizer)))
    parts = changed(difference, "tokenizer")
    assert set(parts) == {"name", "tokenizer.json", "tokenizer.json: model.merges"}
    count = len(document["model"]["merges"])
    assert parts["tokenizer.json: model.merges"] == (f"{count + 1:,} entries", f"{count:,} entries")


@pytest.mark.parametrize(
    ("change", "subject", "what"),
    [
        (lambda d: d.update(packer_version="9.9"), "versions", "packer"),
        (lambda d: d["ledger"]["tokens"].update(lost=0), "ledger", "tokens: lost"),
        (lambda d: d.update(max_token_id=1), "counts", "max_token_id"),
        (lambda d: d.update(stop_ids=[1, 2]), "counts", "stop_ids"),
        (lambda d: d["sources"].append({**d["sources"][0]}), "sources", "chats.jsonl (2)"),
        (lambda d: d["sources"][0].update(weight="2"), "sources", "chats.jsonl: weight"),
        (lambda d: d["masking"].update(method="generation tags"), "options", "masking.method"),
    ],
)
def test_each_part_of_the_manifest_is_compared(
    first: Path, tmp_path: Path, change: Callable[[dict[str, Any]], object], subject: str, what: str
) -> None:
    other = Path(shutil.copytree(first, tmp_path / "packed"))
    edit_manifest(other, change)
    difference = diff(first, other)
    assert difference.verdict == "same bytes"
    assert [(one.subject, one.what) for one in difference.changes] == [(subject, what)]


def test_library_versions_are_read_from_the_logs(first: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(first, tmp_path / "packed"))
    log = json.loads((other / "build-log.json").read_text())
    log["versions"]["tokenizers"] = "0.0"
    (other / "build-log.json").write_text(json.dumps(log))
    assert list(changed(diff(first, other), "versions")) == ["tokenizers"]
    (other / "build-log.json").unlink()
    assert changed(diff(first, other), "versions")["build-log.json"] == ("", "not readable")


def test_the_command_ends_with_1_only_where_rows_differ(first: Path, tmp_path: Path) -> None:
    other = build(tmp_path, ROWS[:-1])
    equal = run_module("packer", ["diff", first, first], cwd=tmp_path)
    assert (equal.returncode, equal.stderr) == (0, "")
    assert "same bytes" in equal.stdout
    run = run_module("packer", ["diff", first, other], cwd=tmp_path)
    assert (run.returncode, run.stderr) == (1, "")
    assert "1 removed\n    chats.jsonl row 49 (example 49): " in run.stdout
    document = json.loads(run_module("packer", ["diff", first, other, "--json"], cwd=tmp_path).stdout)
    assert document["equal"] is False
    assert document["examples"]["removed"] == 1


def test_a_folder_that_is_none_is_two_lines(first: Path, tmp_path: Path) -> None:
    run = run_module("packer", ["diff", first, tmp_path], cwd=tmp_path)
    assert run.returncode == 2
    assert [line.split(":")[0] for line in run.stderr.splitlines()] == ["error", "hint"]


def test_a_folder_whose_table_and_rows_disagree_is_sent_to_verify(first: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(first, tmp_path / "packed"))

    def unlisted(columns: dict[str, Any]) -> None:
        columns["example_ids"][0, 0] = 999

    rewrite_rows(other, "train/shard-00000.arrow", unlisted)
    with pytest.raises(UserError, match="example 999 is not as examples/ lists it") as caught:
        diff(first, other)
    assert "packer verify" in caught.value.hint
