"""What of a folder is data, and what is left out of it aloud."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from packer.data_files import are_packed, data_files
from packer.readers import kind_of
from tests.support import SAMPLE, TINY, chat, run_module, write_jsonl

BUILD = ("--tokenizer", TINY, "--capacity", "1024", "--workers", "1")


def test_files_of_a_format_are_read_wherever_they_lie_and_others_and_hidden_ones_are_passed_over() -> None:
    names = [
        "b/part-1.parquet",
        "a.jsonl",
        "b/c/d.json.gz",
        "README.md",
        ".cache/x.jsonl",
        "b/.y.jsonl",
        "b/__pycache__/z.json",
        "picture.svg",
    ]
    found = data_files(names, kind_of)
    assert (found.read, found.left_out) == (("a.jsonl", "b/c/d.json.gz", "b/part-1.parquet"), ())


@pytest.mark.parametrize(
    ("names", "left_out"),
    [
        (["m/config.json", "m/tokenizer.json", "m/model.safetensors"], ("m/config.json", "m/tokenizer.json")),
        (["dataset_info.json", "state.json"], ("dataset_info.json", "state.json")),
        (["p/manifest.json", "p/train/shard-00000.arrow", "p/examples/part-00000.arrow", "p/rejects.jsonl"], ("p/",)),
        (["q/p/tokens/part-00000.arrow", "q/p/tokenizer/tokenizer.json", "q/p/plan/x.arrow"], ("q/p/",)),
        (["r/config.toml", "r/metrics.jsonl", "r/checkpoints/step-000001/run.json"], ("r/",)),
    ],
    ids=["model", "description", "packed", "unfinished", "run"],
)
def test_what_is_known_to_be_something_else_is_left_out_by_name(names: list[str], left_out: tuple[str, ...]) -> None:
    found = data_files([*names, "a.jsonl"], kind_of)
    assert (found.read, found.left_out) == (("a.jsonl",), left_out)
    assert all(name in found.named for name in left_out)


def test_names_alone_do_not_make_a_folder_something_else() -> None:
    names = ["train/shard-00000.arrow", "manifest.json.gz", "metrics.jsonl", "tokens/part-00000.arrow", "my/chats.json"]
    assert set(data_files(names, kind_of).read) == set(names)
    assert not are_packed(names)


def test_of_many_that_are_left_out_the_first_are_named_and_all_counted() -> None:
    found = data_files([f"m{number}/config.json" for number in range(30)], kind_of)
    assert "m0/config.json" in found.named
    assert "… 30 in all" in found.named
    assert len(found.named) < 300


def test_a_folder_with_a_model_and_its_own_output_in_it_builds_again_to_the_same(tmp_path: Path) -> None:
    rows = SAMPLE.read_text(encoding="utf-8").splitlines()[:12]
    deep, model = tmp_path / "data" / "deep", tmp_path / "data" / "model"
    deep.mkdir(parents=True)
    model.mkdir()
    write_jsonl(deep / "chats.jsonl", rows)
    (model / "config.json").write_text("{}")
    arguments = ["build", "data", *BUILD, "--max-loss", "100%", "-o", "data/packed"]
    first = run_module("packer", arguments, cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    assert first.stderr.splitlines()[0].startswith("not read in data: model/config.json (")
    log = json.loads((tmp_path / "data" / "packed" / "build-log.json").read_text())
    assert log["not_read"] == [first.stderr.splitlines()[0]]
    manifest = (tmp_path / "data" / "packed" / "manifest.json").read_bytes()
    assert [one["name"] for one in json.loads(manifest)["sources"]] == ["chats.jsonl"]
    again = run_module("packer", arguments, cwd=tmp_path)
    assert again.stderr.splitlines()[0].startswith("not read in data: model/config.json, packed/ (")
    assert "already holds this build" in again.stderr
    dry = run_module("packer", [*arguments, "--dry-run"], cwd=tmp_path)
    assert "not read in data: model/config.json, packed/" in dry.stderr
    packed = run_module("packer", ["build", "data/packed", *BUILD, "-o", "other"], cwd=tmp_path)
    assert packed.returncode == 2
    assert packed.stderr.splitlines() == [
        "error: data/packed: rows that are packed already, not chats",
        "hint: name the chats that they were built from; `packer repack` makes other rows of them",
    ]


def test_a_file_named_by_itself_is_read_whatever_it_is_called(tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text(json.dumps([chat("what is left out?", "nothing that was asked for")]))
    done = run_module("packer", ["build", "state.json", *BUILD, "-o", "packed"], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "not read" not in done.stderr
    alone = run_module("packer", ["build", str(tmp_path), *BUILD, "-o", str(tmp_path / "x")], cwd=tmp_path)
    assert alone.returncode == 2
    assert "file there but packed/, state.json (of a model" in alone.stderr
