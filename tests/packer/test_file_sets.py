"""Which files of a folder, a glob or an address are trained on, which are evaluated on, and which are left out by name."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import pytest

from packer.errors import UserError
from packer.source import Opened, SourceSpec, open_sources, read
from packer.sources.chosen_splits import line_about
from tests.support import SAMPLE, TINY, chat, run_module, write_jsonl

BUILD = ("--tokenizer", TINY, "--capacity", "1024", "--workers", "1")


def opened(*names: Path | str, split: str | None = None, eval_split: str | None = None, **more: object) -> Opened:
    pairs = [(str(name), Fraction(1)) for name in names]
    return open_sources(pairs, split=split, eval_split=eval_split, revision=None, **more)  # type: ignore[arg-type]


def taken(found: Opened) -> list[tuple[str, str, bool]]:
    return [(spec.name, spec.split, spec.is_eval) for spec in found.sources]


def left_out(found: Opened, *, count: bool = True) -> list[str]:
    return [line_about(one, count=count) for one in found.left_out]


def folder(root: Path, **rows: int) -> Path:
    """A folder with so many rows a file; "__" in a name stands for "/"."""
    for name, count in rows.items():
        path = root / f"{name.replace('__', '/')}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_jsonl(path, [chat(f"{name} {number}?", "yes") for number in range(count)])
    return root


def refused(*names: Path | str, **more: object) -> list[str]:
    with pytest.raises(UserError) as error:
        opened(*names, **more)  # type: ignore[arg-type]
    return [error.value.message, error.value.hint]


def test_of_a_folder_with_splits_the_train_split_is_taken_and_the_others_are_named_with_their_rows(
    tmp_path: Path,
) -> None:
    data = folder(tmp_path / "data", train=3, test=2, dev=1)
    found = opened(data)
    assert taken(found) == [("train.jsonl", "train", False)]
    assert left_out(found) == [
        f"not read in {data}: split validation (1 row): dev.jsonl",
        f"not read in {data}: split test (2 rows): test.jsonl",
    ]
    assert "rows not counted" in left_out(found, count=False)[0]
    both = opened(data, split="validation", eval_split="test")
    assert taken(both) == [("dev.jsonl", "validation", False), ("test.jsonl", "test", True)]
    assert taken(opened(data, split="train+test")) == [("train.jsonl", "train", False), ("test.jsonl", "test", False)]


def test_several_splits_of_training_are_a_question(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    for split in ("train_sft", "train_gen", "test_sft"):
        pq.write_table(pa.table({"text": ["a"]}), tmp_path / f"{split}-00000-of-00001.parquet")
    splits = "test_sft, train_gen, train_sft"
    assert refused(tmp_path) == [
        f"{tmp_path}: has the splits {splits}, and nothing says which to train on",
        "choose: --split train_gen",
    ]
    assert refused(tmp_path, split="sft") == [
        f"--split sft: {tmp_path} has the splits {splits}",
        "try --split test_sft",
    ]
    assert [one[1] for one in taken(opened(tmp_path, split="train_sft", eval_split="test"))] == [
        "train_sft",
        "test_sft",
    ]
    # A Parquet file says how many rows it has.
    assert left_out(opened(tmp_path, split="train_sft"), count=False)[0].endswith(
        "test_sft (1 row): test_sft-00000-of-00001.parquet"
    )


def test_a_file_that_is_called_test_is_trained_on_only_if_that_is_asked_for(tmp_path: Path) -> None:
    data = folder(tmp_path, train=1, test=1)
    assert refused(data / "test.jsonl") == [
        f"{data}/test.jsonl: called test, which is not trained on unless that is asked for",
        f"--split test trains on it, --eval-file {data}/test.jsonl evaluates on it",
    ]
    assert taken(opened(data / "test.jsonl", split="test")) == [("test.jsonl", "test", False)]
    evaluated = opened(data, eval_files=(str(data / "test.jsonl"),))
    assert taken(evaluated) == [("train.jsonl", "train", False), ("test.jsonl", "test", True)]
    assert left_out(evaluated) == []


def test_a_file_is_the_same_however_its_path_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder(tmp_path / "data", chats=1, held=1)
    monkeypatch.chdir(tmp_path)
    both = [f"{tmp_path}/data/held.jsonl: named both to train on and to evaluate on", "leave it out of one of them"]
    assert refused("data", eval_files=(f"{tmp_path}/data/held.jsonl",)) == both
    assert refused("data", "data/../data/held.jsonl")[0] == "data/../data/held.jsonl: named twice"
    folder(tmp_path / "data", train=1)
    assert left_out(opened("data", eval_files=(f"{tmp_path}/data/held.jsonl",))) == [
        "not read in data: in no split (1 row): chats.jsonl"
    ]


def test_a_file_beside_folders_of_splits_is_in_none_of_them_and_named(tmp_path: Path) -> None:
    data = folder(tmp_path, train=1, test__a=1)
    assert refused(data) == [
        f"{data}: has the split test, by the names of its folders, and nothing else in a split",
        f"name the files to train on, such as {data}/train.jsonl",
    ]
    assert left_out(opened(data, split="test")) == [f"not read in {data}: in no split (1 row): train.jsonl"]


def test_manifests_of_before_are_read(tmp_path: Path) -> None:
    from packer.manifest import load_manifest

    built = tmp_path / "packed"
    done = run_module(
        "packer", ["build", SAMPLE, *BUILD, "--limit", "8", "--max-loss", "100%", "-o", built], cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    document = json.loads((built / "manifest.json").read_text())
    document["sources"] = [{**one, "split": ""} for one in document["sources"]]
    for one in document["sources"]:
        del one["config"], one["used_for"]
    (built / "manifest.json").write_text(json.dumps(document))
    source = load_manifest(built).sources[0]
    assert (source.title, source.config, source.used_for) == ("chats.jsonl", "", "")


def test_folders_above_what_is_named_say_nothing(tmp_path: Path) -> None:
    data = folder(tmp_path / "test" / "eval", chats=1, more__chats=1)
    for name in (data, data / "chats.jsonl", data / "*.jsonl"):
        assert {split for _, split, _ in taken(opened(name))} == {"train"}


def test_a_glob_has_splits_too(tmp_path: Path) -> None:
    data = folder(tmp_path / "data", a__train=1, a__test=2, b__train=1)
    found = opened(f"{data}/*/*.jsonl")
    assert [Path(spec.file or "").relative_to(data).as_posix() for spec in found.sources] == [
        "a/train.jsonl",
        "b/train.jsonl",
    ]
    assert left_out(found) == [f"not read in {data}/*/*.jsonl: split test (2 rows): a/test.jsonl"]


def test_an_address_has_splits_too() -> None:
    import fsspec

    for name in ("train", "test"):
        with fsspec.open(f"memory://splits/{name}.jsonl", "wb") as file:
            file.write(b'{"text": "a"}\n')
    found = opened("memory://splits", eval_split="test")
    assert taken(found) == [("train.jsonl", "train", False), ("test.jsonl", "test", True)]
    assert [row.value for row in read(found.sources[1], ())] == [b'{"text": "a"}']
    assert left_out(opened("memory://splits")) == [
        "not read in memory://splits: split test (rows not counted): test.jsonl"
    ]


def test_a_saved_data_set_is_read_as_datasets_loads_it(tmp_path: Path) -> None:
    import datasets

    rows = [{"text": f"row {number}"} for number in range(6)]
    whole = datasets.Dataset.from_list(rows)
    saved = datasets.DatasetDict({"train_sft": whole.select(range(4)), "test_sft": whole.select(range(4, 6))})
    saved.save_to_disk(tmp_path / "dict", num_shards={"train_sft": 2, "test_sft": 1})
    found = opened(tmp_path / "dict")
    again = datasets.load_from_disk(tmp_path / "dict")["train_sft"]
    assert [row.value for spec in found.sources for row in read(spec, {"text"})] == again.to_list()
    assert left_out(found) == [
        f"not read in {tmp_path}/dict: split test_sft (2 rows): test_sft/data-00000-of-00001.arrow"
    ]

    whole.save_to_disk(tmp_path / "one")
    # What `map` leaves beside it holds rows as well.
    kept = datasets.load_from_disk(tmp_path / "one")
    kept.map(lambda row: {"text": row["text"].upper()}, cache_file_name=str(tmp_path / "one" / "cache-1234.arrow"))
    found = opened(tmp_path / "one")
    assert [row.value for spec in found.sources for row in read(spec, {"text"})] == rows
    assert left_out(found) == [f"not read in {tmp_path}/one: in no split (6 rows): cache-1234.arrow"]


def test_a_saved_data_set_that_lacks_a_part_is_refused(tmp_path: Path) -> None:
    import datasets

    saved = datasets.DatasetDict({"train": datasets.Dataset.from_list([{"text": "a"}, {"text": "b"}])})
    saved.save_to_disk(tmp_path, num_shards={"train": 2})
    (tmp_path / "train" / "data-00001-of-00002.arrow").unlink()
    assert refused(tmp_path) == [
        f"{tmp_path}/train/data-00001-of-00002.arrow: missing, but train/state.json lists it",
        "copy the whole folder again",
    ]


def test_a_saved_split_is_the_split_that_it_was(tmp_path: Path) -> None:
    import datasets

    datasets.Dataset.from_list([{"text": "a"}], split="test[:10%]").save_to_disk(tmp_path)
    assert refused(tmp_path)[0] == f"{tmp_path}: called test, which is not trained on unless that is asked for"
    assert [spec.split for spec in opened(tmp_path, split="test").sources] == ["test"]


CARD = """---
license: mit
configs:
- config_name: chat
  data_files:
  - split: train
    path: "chat/*.jsonl"
  - split: test
    path: ["held/a.jsonl"]
- config_name: code
  data_dir: code
---
# A data set
"""


def test_the_configurations_of_a_folder_are_followed_as_datasets_does(tmp_path: Path) -> None:
    import datasets

    data = folder(tmp_path / "data", chat__one=2, chat__two=1, held__a=3, code__train=4, code__test=5, loose=6)
    (data / "README.md").write_text(CARD)
    assert refused(data) == [f"{data}: has several configurations: chat, code", "choose one: --config-name chat"]
    assert refused(data, config_name="math") == [
        f"--config-name math: {data} has chat, code",
        "choose one: --config-name chat",
    ]
    for name in ("chat", "code"):
        theirs = datasets.load_dataset(str(data), name, cache_dir=str(tmp_path / "cache"))
        found = opened(data, config_name=name, split="train+test")
        for split in ("train", "test"):
            mine = [json.loads(row.value) for spec in found.sources if spec.split == split for row in read(spec, ())]  # type: ignore[arg-type]
            assert mine == theirs[split].to_list()
    assert left_out(opened(data, config_name="chat")) == [
        f"not read in {data}: split test (3 rows): held/a.jsonl",
        f"not read in {data}: in no split (15 rows): code/test.jsonl, code/train.jsonl, loose.jsonl",
    ]
    (data / "README.md").write_text(CARD.replace("- config_name: code", "- config_name: code\n  default: true"))
    assert [spec.split for spec in opened(data).sources] == ["train"]
    assert opened(data).sources[0].file == str(data / "code" / "train.jsonl")


@pytest.mark.parametrize(
    ("card", "error"),
    [
        ("---\nconfigs:\n- config_name: a\n  sep: ';'\n---\n", "the configuration a sets sep, which is not known here"),
        ("---\nconfigs:\n- config_name: a\n  data_files: none/*.jsonl\n---\n", "no data file there for none/*.jsonl of the configuration a"),
        ("---\nconfigs: {a: 1}\n---\n", "its configurations cannot be read (`configs` is not a list of objects with a config_name)"),
        ("---\nconfigs:\n- config_name: a\n  data_files:\n  - path: x\n---\n", "its configurations cannot be read (`data_files` cannot be {'path': 'x'})"),
    ],
)  # fmt: skip
def test_a_description_that_cannot_be_followed_is_refused_by_name(tmp_path: Path, card: str, error: str) -> None:
    folder(tmp_path, chats=1)
    (tmp_path / "README.md").write_text(card)
    assert refused(tmp_path)[0] == f"{tmp_path}/README.md: {error}"


def test_a_folder_without_configurations_has_none_to_name(tmp_path: Path) -> None:
    (folder(tmp_path, chats=1) / "README.md").write_text("---\nlicense: mit\n---\nconfigs: none\n")
    assert len(opened(tmp_path).sources) == 1
    assert refused(tmp_path, config_name="a") == [
        f"--config-name a: {tmp_path} has no configurations",
        "leave it out: the folder is one data set",
    ]


def test_the_configurations_of_the_hub_are_named(tmp_path: Path) -> None:
    data = folder(tmp_path / "data", chat__one=2, held__a=3, code__train=4)
    (data / "README.md").write_text(CARD)
    # To `datasets` a folder and a name on the hub are the same.
    with pytest.raises(UserError) as error:
        list(read(SourceSpec(name=str(data), split="train"), ()))
    assert [error.value.message, error.value.hint] == [
        f"{data}: has several configurations: chat, code",
        "choose one: --config-name chat",
    ]
    with pytest.raises(UserError, match=r"--config-name math: .* has chat, code"):
        list(read(SourceSpec(name=str(data), split="train", config="math"), ()))
    assert len(list(read(SourceSpec(name=str(data), split="train", config="code"), ("messages",)))) == 4


def test_one_document_may_hold_the_splits(tmp_path: Path) -> None:
    path = tmp_path / "all.json"
    path.write_text(json.dumps({"train": [{"text": "a"}, {"text": "b"}], "test": [{"text": "c"}]}, indent=1))
    found = opened(path)
    assert [(row.place, row.value) for row in read(found.sources[0], ())] == [
        ("all.json train row 0", b'{"text": "a"}'),
        ("all.json train row 1", b'{"text": "b"}'),
    ]
    assert left_out(found) == [f"not read in {path}: split test (1 row): all.json"]
    both = opened(path, eval_split="test")
    assert taken(both) == [("all.json", "train", False), ("all.json", "test", True)]
    assert (
        refused(tmp_path / "all.json", eval_files=(str(path),))[0] == f"--eval-file {path}: has the splits train, test"
    )


def test_plain_text_is_read_where_rows_are_texts(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("a\n")
    assert refused(tmp_path / "notes.txt") == [
        f"{tmp_path}/notes.txt: lines of text, not conversations",
        "--format text takes every line as a text to learn",
    ]
    assert refused(tmp_path)[1] == ".txt files are read with --format text, every line as a text"
    assert taken(opened(tmp_path, with_text=True)) == [("notes.txt", "train", False)]


def test_the_report_lists_every_file_with_split_and_rows_and_a_changed_choice_is_another_build(tmp_path: Path) -> None:
    rows = SAMPLE.read_text(encoding="utf-8").splitlines()
    (tmp_path / "data").mkdir()
    for name, some in (("train", rows[:12]), ("test", rows[12:17])):
        write_jsonl(tmp_path / "data" / f"{name}.jsonl", some)
    command = ["build", "data", *BUILD, "--max-loss", "100%", "-o", "packed"]
    done = run_module("packer", command, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    line = "not read in data: split test (5 rows): test.jsonl"
    assert line in done.stderr.splitlines()
    printed = [" ".join(one.split()) for one in done.stdout.splitlines()]
    assert "train.jsonl train 1 12 train" in printed
    assert line in printed
    manifest = json.loads((tmp_path / "packed" / "manifest.json").read_text())
    assert [(one["name"], one["split"], one["used_for"], one["conversations"]) for one in manifest["sources"]] == [("train.jsonl", "train", "train", 12)]  # fmt: skip
    dry = run_module("packer", [*command, "--dry-run"], cwd=tmp_path)
    assert "split test (rows not counted): test.jsonl" in dry.stderr
    for option, sources in (
        (["--split", "train+test"], [("train", "train"), ("test", "train")]),
        (["--eval-split", "test"], [("train", "train"), ("test", "eval")]),
    ):
        other = run_module("packer", [*command, *option], cwd=tmp_path)
        assert other.stderr.splitlines()[-2] == "error: packed holds another build (other sources)"
        forced = run_module("packer", [*command, *option, "--force"], cwd=tmp_path)
        assert forced.returncode == 0, forced.stderr
        manifest = json.loads((tmp_path / "packed" / "manifest.json").read_text())
        assert [(one["split"], one["used_for"]) for one in manifest["sources"]] == sources
