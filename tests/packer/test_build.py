"""A build: same bytes whatever the workers, nothing lost unseen, nothing unfinished taken for finished."""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import packer
from packer.config import BuildConfig
from packer.errors import GateError, UserError
from packer.report import print_build
from packer.turns import OPEN
from packer.verify import verify
from tests.support import ROOT, SAMPLE, TINY, chat, write_jsonl

SAMPLE_ROWS = SAMPLE.read_text(encoding="utf-8").splitlines()


def config(out: Path, *datasets: Path, **options: object) -> BuildConfig:
    values: dict[str, object] = {
        "datasets": tuple(map(str, datasets or (SAMPLE,))),
        "tokenizer": str(TINY),
        "capacity": 4096,
        "workers": 1,
    }
    return BuildConfig(out=out, **{**values, **options})  # type: ignore[arg-type]


def content(folder: Path) -> dict[str, str]:
    """The digest of every file whose bytes must not depend on the day."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "build-log.json"
    }


def rejects(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "rejects.jsonl").read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("build") / "packed"
    packer.build(config(out, eval_fraction=Fraction(1, 10)))
    return out


@pytest.mark.parametrize("workers", [2, pytest.param(4, marks=pytest.mark.full)])
def test_the_bytes_do_not_depend_on_workers_or_ambient_random_state(
    built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    monkeypatch.setattr("packer.parts._PART_ROWS", 50)
    random.seed(5)
    packer.build(config(tmp_path / "two", workers=workers, eval_fraction=Fraction(1, 10)))
    same, two = content(built), content(tmp_path / "two")
    # The token store's record batches follow the slices, which this test made smaller; everything else is equal byte for byte.
    assert {name: digest for name, digest in same.items() if not name.startswith("tokens/")} == {
        name: digest for name, digest in two.items() if not name.startswith("tokens/")
    }


def test_a_build_asked_for_again_writes_nothing(built: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in built.rglob("*")}
    manifest = packer.build(config(built, eval_fraction=Fraction(1, 10)))
    assert {path: path.stat().st_mtime_ns for path in built.rglob("*")} == before
    assert manifest.splits["train"].rows > 0


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"capacity": 8192}, "capacity"),
        ({"seed": 1}, "seed"),
        ({"train_on": "last"}, "train on"),
        ({"strategy": "sequential"}, "strategy"),
        ({"max_segments": 64}, "max segments"),
        ({"limit": 100}, "limit"),
        ({"eval_fraction": Fraction(1, 5)}, "eval fraction"),
    ],
)
def test_another_build_is_not_written_over_unless_forced(built: Path, change: dict, named: str) -> None:
    before = content(built)
    with pytest.raises(UserError, match=f"another build.*{named}"):
        packer.build(replace(config(built, eval_fraction=Fraction(1, 10)), **change))
    assert content(built) == before


def test_a_change_of_template_or_data_alone_is_noticed(tmp_path: Path) -> None:
    data = write_jsonl(tmp_path / "chats.jsonl", SAMPLE_ROWS[:50])
    packer.build(config(tmp_path / "packed", data))
    template = tmp_path / "template.jinja"
    template.write_text((TINY / "chat_template.jinja").read_text(encoding="utf-8") + "{# another #}", encoding="utf-8")
    with pytest.raises(UserError, match="chat template"):
        packer.build(config(tmp_path / "packed", data, chat_template=template))
    write_jsonl(data, SAMPLE_ROWS[:51])
    with pytest.raises(UserError, match="sources"):
        packer.build(config(tmp_path / "packed", data))
    forced = packer.build(config(tmp_path / "packed", data, force=True))
    assert forced.ledger.conversations["read"] == 51
    # Which template was meant is told to a trainer, who holds it against the model's.
    packer.build(config(tmp_path / "own", data, chat_template=template))
    logs = [json.loads((tmp_path / name / "build-log.json").read_text()) for name in ("packed", "own")]
    assert [log["chat_template_path"] for log in logs] == ["", str(template)]


def test_everything_left_out_is_counted_and_named_with_its_place(tmp_path: Path) -> None:
    rows = [
        chat("q", "a"),
        "{broken",
        "[]",
        chat("q", "x " * 5000),
        {"messages": []},
        {"title": "no messages"},
        chat("q", f"a{OPEN}"),
        chat("q", "b"),
    ]
    data = write_jsonl(tmp_path / "chats.jsonl", rows)
    manifest = packer.build(config(tmp_path / "packed", data, max_loss=Fraction(1)))
    counts = manifest.ledger.conversations
    assert counts == {
        "read": 8, "in": 2, "overlong": 1, "not_json": 1, "not_an_object": 1, "empty": 1, "no_messages": 1, "private_use": 1,
    }  # fmt: skip
    assert manifest.ledger.tokens["encoded"] == manifest.ledger.tokens["in_rows"] + manifest.ledger.tokens["overlong"]
    lines = rejects(tmp_path / "packed")
    assert [(line["place"], line["reason"]) for line in lines] == [
        ("chats.jsonl:2", "not_json"),
        ("chats.jsonl:3", "not_an_object"),
        ("chats.jsonl:4", "overlong"),
        ("chats.jsonl:5", "empty"),
        ("chats.jsonl:6", "no_messages"),
        ("chats.jsonl:7", "private_use"),
    ]


def test_too_great_a_loss_ends_the_build_without_a_manifest(tmp_path: Path) -> None:
    data = write_jsonl(tmp_path / "chats.jsonl", [chat("q", "a")] * 9 + ["{broken"])
    with pytest.raises(
        GateError,
        match=r"10\.00% of the conversations were lost, more than --max-loss 1\.00% \(not_json 1, of 10 conversations read\)",
    ):
        packer.build(config(tmp_path / "packed", data))
    assert not (tmp_path / "packed" / "manifest.json").exists()
    assert len(rejects(tmp_path / "packed")) == 1
    packer.build(config(tmp_path / "packed", data, max_loss=Fraction(1, 10)))


def test_the_gate_holds_tokens_too(tmp_path: Path) -> None:
    """One conversation in a hundred is little, but here it is most of the tokens."""
    data = write_jsonl(tmp_path / "chats.jsonl", [chat("q", "a")] * 99 + [chat("q", "word " * 20_000)])
    with pytest.raises(
        GateError, match=r"% of the tokens were lost, .*\(overlong 200\d\d, of 21\d\d\d tokens encoded\)"
    ):
        packer.build(config(tmp_path / "packed", data, max_loss=Fraction(1, 50)))


@pytest.mark.parametrize(("overlong", "reason"), [("truncate", "truncated"), ("split", "split_off")])
def test_the_gate_on_what_was_cut_off_names_it_and_no_list_that_is_empty(
    tmp_path: Path, overlong: str, reason: str
) -> None:
    """The conversation goes in, so rejects.jsonl has no line of it."""
    asked = chat("q", "a", "word " * 300, "b")
    data = write_jsonl(tmp_path / "chats.jsonl", [asked])
    with pytest.raises(GateError) as error:
        packer.build(config(tmp_path / "packed", data, capacity=64, overlong=overlong))
    found = re.search(r"% of the tokens were lost, .*\((\w+) (\d+), of (\d+) tokens encoded\)$", error.value.message)
    assert found, error.value.message
    assert found[1] == reason
    assert error.value.message.startswith(f"{int(found[2]) / int(found[3]):.2%} ")
    assert rejects(tmp_path / "packed") == []
    assert "rejects.jsonl" not in error.value.hint


def test_what_a_weight_left_out_is_no_loss_in_the_gate_s_words(tmp_path: Path) -> None:
    data = write_jsonl(tmp_path / "chats.jsonl", [chat("q", "a")] * 200 + [chat("q", "word " * 100)] * 200)
    with pytest.raises(GateError) as error:
        packer.build(
            BuildConfig(
                mix=((str(data), Fraction(1, 2)),),
                tokenizer=str(TINY),
                capacity=64,
                out=tmp_path / "packed",
                workers=1,
            )
        )
    assert "not_drawn" not in error.value.message
    assert re.search(r"tokens were lost, .*\(overlong \d+, of \d+ tokens encoded\)", error.value.message)


def test_overlong_error_names_the_place(tmp_path: Path) -> None:
    data = write_jsonl(tmp_path / "chats.jsonl", [chat("q", "a"), chat("q", "word " * 20_000)])
    with pytest.raises(UserError, match=r"chats\.jsonl:2: \d+ tokens do not fit a row of 4096"):
        packer.build(config(tmp_path / "packed", data, overlong="error"))


def test_every_file_kind_gives_the_same_rows(tmp_path: Path) -> None:
    rows = [json.loads(line) for line in SAMPLE_ROWS[:60]]
    write_jsonl(tmp_path / "chats.jsonl", rows)
    (tmp_path / "chats.json").write_text(json.dumps(rows), encoding="utf-8")
    arrow = pa.Table.from_pylist(rows)
    pq.write_table(arrow, tmp_path / "chats.parquet")
    with pa.ipc.new_file(tmp_path / "chats.arrow", arrow.schema) as writer:
        writer.write_table(arrow)
    with pa.ipc.new_stream(tmp_path / "stream.arrow", arrow.schema) as writer:
        writer.write_table(arrow)
    shards = set()
    for name in ("chats.jsonl", "chats.json", "chats.parquet", "chats.arrow", "stream.arrow"):
        out = tmp_path / f"packed-{name}"
        manifest = packer.build(config(out, tmp_path / name))
        shards.add(tuple(shard.xxh3_128 for shard in manifest.splits["train"].shards))
    assert len(shards) == 1


def test_several_files_are_read_in_order_and_rows_counted_from_each(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "b.jsonl", SAMPLE_ROWS[:3])
    write_jsonl(tmp_path / "a.jsonl", SAMPLE_ROWS[3:5])
    manifest = packer.build(config(tmp_path / "packed", tmp_path))
    assert [(source.name, source.conversations) for source in manifest.sources] == [("a.jsonl", 2), ("b.jsonl", 3)]
    listed = pa.ipc.open_file(tmp_path / "packed" / "examples" / "part-00000.arrow").read_all().to_pylist()
    assert [(entry["source"], entry["row"]) for entry in listed] == [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2)]


def test_duplicates_never_stand_on_both_sides_of_the_eval_split(tmp_path: Path) -> None:
    rows = [chat(f"question {number % 50}", "answer") for number in range(500)]
    data = write_jsonl(tmp_path / "chats.jsonl", rows)
    packer.build(config(tmp_path / "packed", data, eval_fraction=Fraction(3, 10)))
    sides: dict[int, set[str]] = {}
    for entry in pa.ipc.open_file(tmp_path / "packed" / "examples" / "part-00000.arrow").read_all().to_pylist():
        sides.setdefault(entry["row"] % 50, set()).add(entry["split"])
    assert all(len(side) == 1 for side in sides.values())
    assert {next(iter(side)) for side in sides.values()} == {"train", "eval"}


def test_limit_reads_the_first_conversations(tmp_path: Path) -> None:
    manifest = packer.build(config(tmp_path / "packed", limit=7))
    assert manifest.ledger.conversations["read"] == 7


def test_without_a_token_store_the_rows_are_the_same(built: Path, tmp_path: Path) -> None:
    packer.build(config(tmp_path / "packed", token_store=False, eval_fraction=Fraction(1, 10)))
    assert not (tmp_path / "packed" / "tokens").exists()
    without, with_store = content(tmp_path / "packed"), content(built)
    assert without == {name: digest for name, digest in with_store.items() if not name.startswith("tokens/")}


def test_the_token_store_holds_every_conversation_once_also_the_overlong(tmp_path: Path) -> None:
    from packer.tokens import TokenStore

    data = write_jsonl(tmp_path / "chats.jsonl", [chat("q", "a"), chat("q", "x " * 5000), chat("q", "two words")])
    packer.build(config(tmp_path / "packed", data, max_loss=Fraction(1)))
    store = TokenStore(tmp_path / "packed" / "tokens")
    assert len(store) == 3
    assert store.column("row").tolist() == [0, 1, 2]
    assert len(store[1][0]) > 4096
    row = packer.open(tmp_path / "packed")[0]
    assert sorted(row.example_ids[: row.num_examples].tolist()) == [0, 1]
    for place, example in enumerate(row.example_ids[: row.num_examples].tolist()):
        start, end = row.cu_seqlens[place : place + 2]
        stored = {0: 0, 1: 2}[example]
        assert row.input_ids[start:end].tolist() == store[stored][0].tolist()
        assert row.loss_mask[start:end].tolist() == store[stored][1].tolist()


def test_torch_is_not_imported_by_a_real_build_or_its_workers(tmp_path: Path) -> None:
    """The workers are asked too: each writes the names of its modules when it has encoded a slice."""
    code = f"""
import json, sys
from pathlib import Path
import packer, packer.parts, packer.engine
packer.parts._PART_ROWS = 50
from packer.config import BuildConfig
from tests.packer import spy
packer.build(BuildConfig(datasets=({str(SAMPLE)!r},), tokenizer={str(TINY)!r}, capacity=4096, workers=2, out=Path({str(tmp_path / "packed")!r})), spy.install())
print(json.dumps([name for name in sys.modules if name.split('.')[0] in ('torch', 'trainer')]))
"""
    run = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "SPY_FOLDER": str(tmp_path)},
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout.splitlines()[-1]) == []
    workers = list(tmp_path.glob("worker-*.json"))
    assert workers, "no worker reported"
    for report in workers:
        modules = json.loads(report.read_text())
        assert "packer.encode" in modules
        assert not [name for name in modules if name.split(".")[0] in ("torch", "trainer")]


@pytest.mark.parametrize(
    "left", [".manifest.json.tmp", ".rejects.jsonl.tmp", ".build-log.json.tmp", "tokens/.part-00000.arrow.tmp"]
)
def test_what_a_killed_build_was_writing_is_cleared_away(tmp_path: Path, left: str) -> None:
    """The moment between a file's first byte and its rename is too short to be hit at random."""
    out = tmp_path / "packed"
    (out / "tokens").mkdir(parents=True)
    (out / ".packer-building").touch()
    (out / left).write_text("half")
    packer.build(config(out))
    assert not (out / left).exists()
    assert not (out / ".packer-building").exists()


def test_a_build_killed_when_all_but_its_mark_was_done_is_a_finished_one(built: Path, tmp_path: Path) -> None:
    shutil.copytree(built, tmp_path / "packed")
    (tmp_path / "packed" / ".packer-building").touch()
    packer.build(config(tmp_path / "packed", eval_fraction=Fraction(1, 10)))
    assert content(tmp_path / "packed") == content(built)


def test_two_builds_into_one_folder_are_refused(tmp_path: Path) -> None:
    from packer.folder import claim

    with claim(tmp_path / "packed"), pytest.raises(UserError, match="another build is writing"):
        packer.build(config(tmp_path / "packed"))
    packer.build(config(tmp_path / "packed"))


def test_files_that_packer_did_not_write_are_never_touched(tmp_path: Path) -> None:
    mine = tmp_path / "packed" / "train"
    mine.mkdir(parents=True)
    (mine / "thesis.txt").write_text("years of work")
    for force in (False, True):
        with pytest.raises(UserError, match="which packer did not write"):
            packer.build(config(tmp_path / "packed", force=force))
    assert (mine / "thesis.txt").read_text() == "years of work"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir(mode=0o500)
    with pytest.raises(UserError, match="cannot be written"):
        packer.build(config(tmp_path / "locked" / "packed"))


def test_a_full_disk_is_said_so_and_leaves_nothing_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_arguments: object, **_options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("packer.rows.write_shard", full)
    with pytest.raises(UserError, match="No space left on device"):
        packer.build(config(tmp_path / "packed"))
    assert not (tmp_path / "packed" / "manifest.json").exists()


def test_a_dead_worker_is_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.packer import spy

    monkeypatch.setattr("packer.parts._PART_ROWS", 50)
    monkeypatch.setattr("packer.pipeline.make_part_writer", spy.make_dying_writer)
    with pytest.raises(UserError, match="worker process ended before its work"):
        packer.build(config(tmp_path / "packed", workers=2))
    assert not (tmp_path / "packed" / "manifest.json").exists()


def test_a_hub_that_cannot_be_reached_is_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(UserError) as caught:
        packer.build(BuildConfig(out=tmp_path / "packed", tokenizer=str(TINY)))
    assert "HuggingFaceH4/ultrachat_200k (split train_sft)" in caught.value.message
    assert "packer build chats.jsonl" in caught.value.hint


def turns(count: int, words: int) -> dict:
    """A chat of `count` answers of about `words` tokens each."""
    return chat(*(text for number in range(count) for text in (f"question {number}", "word " * words)))


def rows_of(folder: Path) -> list[tuple[list[int], list[bool]]]:
    """The ids and mask of every example in the rows, in order of example number."""
    found = {}
    for row in packer.open(folder):
        for place, example in enumerate(row.example_ids[: row.num_examples].tolist()):
            start, end = row.cu_seqlens[place : place + 2]
            found[example] = (row.input_ids[start:end].tolist(), row.loss_mask[start:end].tolist())
    return [found[example] for example in sorted(found)]


def test_truncate_takes_whole_turns_off_the_end_and_counts_the_tokens(tmp_path: Path) -> None:
    data = write_jsonl(tmp_path / "chats.jsonl", [turns(5, 100), turns(1, 10)])
    manifest = packer.build(config(tmp_path / "packed", data, capacity=384, overlong="truncate", max_loss=Fraction(1)))
    whole = packer.build(config(tmp_path / "whole", data))
    (cut_ids, cut_mask), short = rows_of(tmp_path / "packed")
    (all_ids, all_mask), same_short = rows_of(tmp_path / "whole")
    assert short == same_short
    assert cut_ids == all_ids[: len(cut_ids)]
    assert cut_mask == all_mask[: len(cut_mask)]
    assert 192 < len(cut_ids) <= 384
    assert cut_mask[-1], "the last token is a target"
    assert cut_ids[-1] in manifest.stop_ids, "and it is the one that ends a turn"
    assert manifest.ledger.conversations == {"read": 2, "in": 2}
    lost = len(all_ids) - len(cut_ids)
    assert manifest.ledger.tokens == {
        "encoded": whole.ledger.tokens["encoded"],
        "in_rows": whole.ledger.tokens["encoded"] - lost,
        "truncated": lost,
    }
    assert manifest.ledger.in_part == {"truncated": 1}


def test_how_many_conversations_were_cut_is_counted_stored_told_and_verified(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are in rows, so they stand under no reason of the conversations left out."""
    data = write_jsonl(tmp_path / "chats.jsonl", [turns(5, 100), turns(5, 101), turns(1, 10), turns(1, 600)])
    out = tmp_path / "packed"
    manifest = packer.build(config(out, data, capacity=384, overlong="truncate", max_loss=Fraction(1)))
    assert manifest.ledger.conversations == {"read": 4, "in": 3, "overlong": 1}
    assert packer.open(out).manifest.ledger.in_part == manifest.ledger.in_part == {"truncated": 2}
    print_build(manifest, out)
    lost = manifest.ledger.tokens["truncated"]
    assert (
        f"truncated: 2 of the conversations in rows went in without {lost} of their tokens" in capsys.readouterr().out
    )
    assert not verify(out).broken
    stored = (out / "manifest.json").read_text()
    (out / "manifest.json").write_text(stored.replace('"truncated": 2', '"truncated": 1'))
    assert list(verify(out).rules) == ["the ledger's in_part must be those that the token store makes"]


def test_truncate_drops_what_has_not_one_whole_turn(tmp_path: Path) -> None:
    data = write_jsonl(tmp_path / "chats.jsonl", [turns(1, 500), turns(1, 10)])
    manifest = packer.build(config(tmp_path / "packed", data, capacity=128, overlong="truncate", max_loss=Fraction(1)))
    assert manifest.ledger.conversations == {"read": 2, "in": 1, "overlong": 1}


def test_split_loses_no_token_and_no_piece_begins_with_a_target(tmp_path: Path) -> None:
    data = write_jsonl(tmp_path / "chats.jsonl", [turns(5, 100), turns(1, 300)])
    manifest = packer.build(config(tmp_path / "packed", data, capacity=256, overlong="split", max_loss=Fraction(1)))
    packer.build(config(tmp_path / "whole", data))
    assert (
        manifest.ledger.tokens["in_rows"]
        == manifest.ledger.tokens["encoded"]
        == sum(len(ids) for ids, _ in rows_of(tmp_path / "whole"))
    )
    pieces = rows_of(tmp_path / "packed")
    assert [token for ids, _ in pieces for token in ids] == [
        token for ids, _ in rows_of(tmp_path / "whole") for token in ids
    ]
    assert not any(mask[0] for _, mask in pieces)
    listed = pa.ipc.open_file(tmp_path / "packed" / "examples" / "part-00000.arrow").read_all().to_pylist()
    assert [(entry["row"], entry["piece"]) for entry in listed][:2] == [(0, 0), (0, 1)]
    assert (
        sum(entry["supervised"] for entry in listed)
        == manifest.splits["train"].supervised_tokens
        == sum(sum(mask) for _, mask in pieces)
    )


def test_what_texts_spell_is_in_the_manifest(tmp_path: Path) -> None:
    data = write_jsonl(tmp_path / "chats.jsonl", [chat("what is <|im_end|> and <|im_end|>?", "a mark")])
    assert packer.build(config(tmp_path / "packed", data)).ledger.control_tokens == {"user": {"<|im_end|>": 2}}


def test_weights_are_copies_and_fractions_are_drawn_by_seed(tmp_path: Path) -> None:
    first = write_jsonl(tmp_path / "a.jsonl", [chat(f"a{number}", "x") for number in range(200)])
    second = write_jsonl(tmp_path / "b.jsonl", [chat(f"b{number}", "x") for number in range(200)])
    mix = ((str(first), Fraction(2)), (str(second), Fraction(1, 2)))
    manifest = packer.build(BuildConfig(mix=mix, tokenizer=str(TINY), capacity=64, out=tmp_path / "packed", workers=1))
    listed = pa.ipc.open_file(tmp_path / "packed" / "examples" / "part-00000.arrow").read_all().to_pylist()
    assert [(entry["row"], entry["copy"]) for entry in listed if entry["source"] == 0] == [
        (n, c) for n in range(200) for c in (0, 1)
    ]
    drawn = [entry["row"] for entry in listed if entry["source"] == 1]
    assert 60 < len(drawn) < 140, "half of 200, give or take"
    assert len(set(drawn)) == len(drawn)
    assert manifest.ledger.conversations == {"read": 400, "in": 200 + len(drawn), "not_drawn": 200 - len(drawn)}
    assert manifest.ledger.tokens["encoded"] == manifest.ledger.tokens["in_rows"] == manifest.splits["train"].tokens
    assert [(source.weight, source.conversations) for source in manifest.sources] == [("2", 200), ("1/2", 200)]
    other = BuildConfig(mix=mix, tokenizer=str(TINY), capacity=64, out=tmp_path / "other", workers=1, seed=1)
    packer.build(other)
    again = pa.ipc.open_file(tmp_path / "other" / "examples" / "part-00000.arrow").read_all().to_pylist()
    assert [entry["row"] for entry in again if entry["source"] == 1] != drawn


def test_compressed_files_globs_and_addresses_give_the_same_rows(tmp_path: Path) -> None:
    import bz2
    import gzip
    import lzma

    import fsspec
    import zstandard

    text = "\n".join(SAMPLE_ROWS[:30]).encode() + b"\n"
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "chats.jsonl").write_bytes(text)
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(text))
    (tmp_path / "b.jsonl.bz2").write_bytes(bz2.compress(text))
    (tmp_path / "c.jsonl.xz").write_bytes(lzma.compress(text))
    (tmp_path / "d.jsonl.zst").write_bytes(zstandard.compress(text))
    (tmp_path / "bom.jsonl").write_bytes(b"\xef\xbb\xbf" + text.replace(b"\n", b"\r\n"))
    with fsspec.open("memory://bucket/deep/chats.jsonl", "wb") as file:
        file.write(text)
    names = [
        tmp_path / "plain",
        tmp_path / "plain" / "*.jsonl",
        *sorted(tmp_path.glob("?.jsonl.*")),
        tmp_path / "bom.jsonl",
    ]
    addresses = [
        *map(str, names),
        f"file://{tmp_path}/plain/chats.jsonl",
        "memory://bucket/deep",
        "memory://bucket/*/chats.jsonl",
    ]
    found = set()
    for number, name in enumerate(addresses):
        manifest = packer.build(
            BuildConfig(
                datasets=(name,), tokenizer=str(TINY), capacity=4096, out=tmp_path / f"packed{number}", workers=1
            )
        )
        assert manifest.ledger.conversations == {"read": 30, "in": 30}, name
        found.add(tuple(shard.xxh3_128 for shard in manifest.splits["train"].shards))
    assert len(found) == 1


@pytest.mark.parametrize(
    "name", ["gone.jsonl.gz", "no*.jsonl", "nosuch://bucket/a.jsonl", "memory://nowhere/a.jsonl", ""]
)
def test_a_source_that_is_not_there_is_said_so(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError):
        packer.build(BuildConfig(datasets=(name,), tokenizer=str(TINY), out=tmp_path / "packed"))


def test_a_broken_archive_is_said_so_with_its_name(tmp_path: Path) -> None:
    import gzip

    whole = gzip.compress("\n".join(SAMPLE_ROWS).encode())
    (tmp_path / "cut.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match=r"cut\.jsonl\.gz"):
        packer.build(config(tmp_path / "packed", tmp_path / "cut.jsonl.gz"))
    assert not (tmp_path / "packed" / "manifest.json").exists()


def test_one_file_named_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="named twice"):
        packer.build(config(tmp_path / "packed", SAMPLE, SAMPLE))


class Lying:
    """A fast encoder that gives a wrong id once, far into the data."""

    def __init__(self, inner: object) -> None:
        self._inner = inner

    def encode(self, texts: list[str]):
        from packer.encoders import Flat

        flat = self._inner.encode(texts)
        if any("Sample 3" in text or number for number, text in enumerate(texts)):
            ids = flat.ids.copy()
            ids[flat.offsets[0]] = 7
            return Flat(ids=ids, offsets=flat.offsets)
        return flat


def test_a_fast_encoder_that_differs_is_dropped_aloud_and_leaves_no_trace(
    built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import packer.encoders as encoders
    from packer.progress import Progress

    real = encoders.Splintr
    monkeypatch.setattr(encoders, "stress_texts", lambda _: ("",))
    monkeypatch.setitem(encoders._MAKERS, "splintr", lambda backend: Lying(real(backend)))
    said: list[str] = []

    class Listening(Progress):
        def say(self, line: str) -> None:
            said.append(line)

    packer.build(config(tmp_path / "packed", eval_fraction=Fraction(1, 10), encoder="splintr"), Listening())
    assert any(
        "splintr differs from tokenizers on" in line and "starting over with tokenizers" in line for line in said
    )
    assert content(tmp_path / "packed") == content(built)
    assert json.loads((tmp_path / "packed" / "build-log.json").read_text())["encoder"] == "tokenizers"


@pytest.mark.parametrize("encoder", ["tokenizers", "splintr", "fastokens"])
def test_every_encoder_gives_the_same_bytes(built: Path, tmp_path: Path, encoder: str) -> None:
    packer.build(config(tmp_path / "packed", eval_fraction=Fraction(1, 10), encoder=encoder))
    assert json.loads((tmp_path / "packed" / "build-log.json").read_text())["encoder"] == encoder
    assert content(tmp_path / "packed") == content(built)


def test_a_loss_that_was_allowed_once_is_not_allowed_for_ever(tmp_path: Path) -> None:
    data = write_jsonl(tmp_path / "chats.jsonl", [chat("q", "a")] * 9 + ["{broken"])
    packer.build(config(tmp_path / "packed", data, max_loss=Fraction(1)))
    with pytest.raises(GateError, match="not_json 1"):
        packer.build(config(tmp_path / "packed", data))


def test_a_finished_folder_that_lacks_a_part_is_not_called_finished(built: Path, tmp_path: Path) -> None:
    shutil.copytree(built, tmp_path / "packed")
    shutil.rmtree(tmp_path / "packed" / "examples")
    with pytest.raises(UserError, match="examples is missing from a finished build"):
        packer.build(config(tmp_path / "packed", eval_fraction=Fraction(1, 10)))


def test_what_is_read_is_never_cleared_with_the_folder_that_is_written(tmp_path: Path) -> None:
    out = tmp_path / "packed"
    packer.build(config(out))
    with pytest.raises(UserError, match="lies in the output folder"):
        packer.build(config(out, tokenizer=str(out / "tokenizer"), force=True))
    assert packer.open(out)[0] is not None
    (tmp_path / "in").mkdir()
    mine = write_jsonl(tmp_path / "in" / "rejects.jsonl", [chat("q", "a")])
    with pytest.raises(UserError, match="lies in the output folder"):
        packer.build(config(tmp_path / "in", mine))
    assert mine.exists()


@pytest.mark.parametrize("workers", [1, 2])
def test_rows_at_the_limits_of_json_and_python_are_told_of_one_by_one(
    tmp_path: Path, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("packer.parts._PART_ROWS", 4)
    deep, deepest = "[" * 900 + "]" * 900, "[" * 100_000
    ask, answer = '{"role":"user","content":"q"}', '{"role":"assistant","content":"a"}'

    def row(answer: str, rest: str = "") -> str:
        return '{"messages":[' + ask + "," + answer + "]" + rest + "}"

    def calling(arguments: str) -> str:
        return row(
            '{"role":"assistant","content":"a","tool_calls":[{"function":{"name":"f","arguments":' + arguments + "}}]}"
        )

    lines = [
        '{"\\ud800x": 1}',
        deepest,
        row(answer, ',"unused":' + deep),
        calling(json.dumps(deep)),
        calling(json.dumps("9" * 5000)),
        calling('{"x":' + deep + "}"),
        row(answer, ',"tools":' + json.dumps(deepest)),
        row('{"role":"assistant","content":"a","name":"\\udfff"}'),
        *SAMPLE_ROWS[:5],
    ]
    data = write_jsonl(tmp_path / "chats.jsonl", lines)
    manifest = packer.build(config(tmp_path / "packed", data, max_loss=Fraction(1), workers=workers))
    counts = manifest.ledger.conversations
    assert counts["read"] == len(lines)
    assert counts["in"] >= 6
    assert len(rejects(tmp_path / "packed")) == counts["read"] - counts["in"]


def test_columns_that_nothing_is_made_of_cannot_end_a_build(tmp_path: Path) -> None:
    rows = [json.loads(line) for line in SAMPLE_ROWS[:5]]
    table = pa.Table.from_pylist(rows).append_column("when", pa.array([10**7] * 5, type=pa.date32()))
    bad_text = pa.Array.from_buffers(
        pa.string(), 5, [None, pa.py_buffer(b"\0" * 4 + bytes([1, 0, 0, 0]) * 5), pa.py_buffer(b"\xff")]
    )
    table = table.append_column("bad", bad_text)
    pq.write_table(table.drop_columns(["bad"]), tmp_path / "a.parquet")
    with pa.ipc.new_file(tmp_path / "b.arrow", table.schema) as writer:
        writer.write_table(table)
    for name in ("a.parquet", "b.arrow"):
        assert packer.build(config(tmp_path / name.replace(".", "-"), tmp_path / name)).ledger.conversations == {
            "read": 5,
            "in": 5,
        }


def test_a_row_of_a_columnar_file_that_python_cannot_hold_is_told_of_by_itself(tmp_path: Path) -> None:
    texts = pa.Array.from_buffers(
        pa.string(), 3, [None, pa.py_buffer(np.array([0, 3, 4, 7], dtype=np.int32)), pa.py_buffer(b"abc\xffdef")]
    )
    with pa.ipc.new_file(tmp_path / "t.arrow", pa.schema([("text", pa.string())])) as writer:
        writer.write_table(pa.table({"text": texts}))
    manifest = packer.build(config(tmp_path / "packed", tmp_path / "t.arrow", max_loss=Fraction(1)))
    assert manifest.ledger.conversations == {"read": 3, "in": 2, "not_json": 1}
    assert rejects(tmp_path / "packed")[0]["place"] == "t.arrow row 1"


def test_hub_rows_lose_the_null_keys_that_arrow_gave_them(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    call = {"function": {"name": "f", "arguments": {"x": "1"}}}
    other = {"function": {"name": "f", "arguments": {"y": "2"}}}
    ask = {"role": "user", "content": "q"}
    rows = [{"messages": [ask, {"role": "assistant", "content": "a", "tool_calls": [one]}]} for one in (call, other)]
    table = datasets.Dataset.from_list([{"id": 7, **row} for row in rows])
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: table)
    from packer.source import SourceSpec, read

    seen = [row.value for row in read(SourceSpec(name="a/b", split="train"), frozenset(["messages"]))]
    # A column that is not read is there by its name, for a message that tells which there are.
    assert seen == [{"id": None, **row} for row in rows]


def test_names_that_are_not_utf8_do_not_end_a_build(tmp_path: Path) -> None:
    name = os.fsencode(tmp_path) + b"/caf\xe9.jsonl"
    with open(name, "wb") as file:
        file.write("\n".join([*SAMPLE_ROWS[:3], "{"]).encode())
    manifest = packer.build(config(tmp_path / "packed", Path(os.fsdecode(name)), max_loss=Fraction(1)))
    assert manifest.sources[0].name == "caf\\udce9.jsonl"
    assert rejects(tmp_path / "packed")[0]["place"] == "caf\\udce9.jsonl:4"


def long_build(tmp_path: Path) -> list[str]:
    """A command that keeps two workers busy for a while."""
    big = tmp_path / "big.jsonl"
    big.write_text("\n".join(SAMPLE_ROWS * 60), encoding="utf-8")
    arguments = ["build", big, "--tokenizer", TINY, "--workers", "2", "-o", tmp_path / "packed"]
    return [sys.executable, "-m", "packer", *map(str, arguments)]


def workers_of(process: int) -> list[str]:
    """The numbers of its worker processes."""
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return [pid for pid in children if "spawn_main" in Path(f"/proc/{pid}/cmdline").read_text()]


def ignores_ctrl_c(process: str) -> bool:
    """As a worker does once it has started."""
    status = Path(f"/proc/{process}/status").read_text()
    ignored = next(line.split()[1] for line in status.splitlines() if line.startswith("SigIgn:"))
    return bool(int(ignored, 16) >> signal.SIGINT - 1 & 1)


def test_workers_end_with_their_parent(tmp_path: Path) -> None:
    command = long_build(tmp_path)
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 300
    workers: list[str] = []
    while time.monotonic() < deadline and len(workers) < 2:
        workers = workers_of(process.pid)
    time.sleep(1)
    process.kill()
    process.wait()
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline and any(Path(f"/proc/{pid}").exists() for pid in workers):
        time.sleep(0.2)
    assert workers
    assert not [pid for pid in workers if Path(f"/proc/{pid}").exists()]


def test_a_worker_whose_parent_died_before_it_began_ends_all_the_same(tmp_path: Path) -> None:
    code = (
        "import threading, time; from pathlib import Path; from packer.engine import _start\n"
        f"_start(Path({str(tmp_path)!r}), threading.Event(), {2**22 + 1}); time.sleep(120); print('alive')"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout) == (1, "")


def test_ctrl_c_is_one_word(tmp_path: Path) -> None:
    command = long_build(tmp_path)
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    while sum(map(ignores_ctrl_c, workers_of(process.pid))) < 2:
        assert process.poll() is None
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=900)
    assert process.returncode == 130, out + err
    assert err.splitlines()[-1] == "interrupted"
    assert "Traceback" not in err
