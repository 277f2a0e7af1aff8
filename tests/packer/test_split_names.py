"""The split of a file by its name: what `datasets` infers, computed by `datasets` itself on the same layouts."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from packer.sources.split_names import by_default, is_held_out, matching, split_of_file, splits_by_name

WORDS = ("train", "test", "valid", "val", "dev", "eval", "evaluation", "training", "validation")
WORDS += ("testing", "chats", "data", "trainer", "latest", "sft", "my")
BREAKS = ("-", "_", " ", ".", "0", "")
FIXED = [
    ["train.jsonl", "test.jsonl"],
    ["train.jsonl.gz", "validation.jsonl.gz", "other.jsonl"],
    ["data/train_sft-00000-of-00003.parquet", "data/test_sft-00000-of-00001.parquet", "data/train_gen-00000-of-00001.parquet"],
    ["data/train-00000-of-00002-abcdef.parquet", "data/train-00001-of-00002-abcdef.parquet", "extra.parquet"],
    ["data/chats-00000-of-00001.parquet"],
    ["train/a.jsonl", "dev/a.jsonl"],
    ["data/train/deep/a.jsonl", "data/test/a.jsonl", "a.jsonl"],
    ["latest.jsonl", "trainer.jsonl", "contest_1.jsonl"],
    ["my_train_0.jsonl", "my_train_1.jsonl", "my-eval.jsonl"],
    ["a.jsonl", "b/c.jsonl"],
    ["train_test.jsonl"],
]  # fmt: skip


def by_datasets(folder: Path, files: list[str]) -> dict[str, set[str]]:
    from datasets.data_files import DataFilesDict, get_data_patterns

    for file in files:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text("{}")
    found = DataFilesDict.from_local_or_remote(get_data_patterns(str(folder)), base_path=str(folder))
    return {str(split): {Path(file).relative_to(folder).as_posix() for file in some} for split, some in found.items()}


def drawn(seed: int) -> list[str]:
    draw = random.Random(seed)

    def name() -> str:
        return "".join(draw.choice(WORDS) + draw.choice(BREAKS) for _ in range(draw.randint(1, 3))).strip(". ") or "x"

    files = set()
    for _ in range(draw.randint(1, 4)):
        folders = ["data"] if draw.random() < 0.2 else [f"{name()}x" for _ in range(draw.choice([0, 0, 1, 2]))]
        shard = f"{draw.choice(WORDS)}-0000{draw.randint(0, 1)}-of-00002"
        files.add("/".join([*folders, f"{shard if draw.random() < 0.3 else name()}.jsonl"]))
    return sorted(files)


@pytest.mark.parametrize("files", [*FIXED, *map(drawn, range(120))], ids=" ".join)
def test_splits_are_those_of_datasets(tmp_path: Path, files: list[str]) -> None:
    expected = by_datasets(tmp_path / "folder", files)
    assert {split: set(some) for split, some in splits_by_name(files).items()} == expected


def test_shards_of_one_folder_keep_the_names_of_their_splits_wherever_it_lies() -> None:
    files = [f"{split}-00000-of-00001.parquet" for split in ("test_gen", "test_sft", "train_gen", "train_sft")]
    assert set(splits_by_name(files)) == {"test_gen", "test_sft", "train_gen", "train_sft"}
    assert splits_by_name(["chats-00000-of-00002.jsonl", "chats-00001-of-00002.jsonl"]).keys() == {"train"}


def test_capitals_do_not_hide_a_split() -> None:
    assert splits_by_name(["Test.jsonl", "TRAIN.JSONL"]) == {"train": ("TRAIN.JSONL",), "test": ("Test.jsonl",)}


@pytest.mark.parametrize(
    ("file", "split"),
    [
        ("chats.jsonl", "train"), ("test.jsonl", "test"), ("valid.json.gz", "validation"), ("Eval_1.csv", "test"),
        ("test_sft-00000-of-00001.parquet", "test_sft"), ("train_sft-00000-of-00003.parquet", "train_sft"),
        ("attestations.jsonl", "train"), ("latest.jsonl", "train"),
    ],
)  # fmt: skip
def test_a_file_by_itself(file: str, split: str) -> None:
    assert split_of_file(file) == split


def test_a_name_stands_for_a_split_of_that_name_or_of_its_keyword() -> None:
    assert matching(["train_sft", "test_sft"], "train") == ("train_sft",)
    assert matching(["train_sft", "train_gen"], "train") == ("train_sft", "train_gen")
    assert matching(["train", "train_gen"], "train") == ("train",)
    assert matching(["train", "validation"], "dev") == ("validation",)
    assert matching(["train", "validation"], "sft") == ()


def test_held_out_rows_are_no_default() -> None:
    assert by_default(["train", "test"]) == ("train",)
    assert by_default(["chats"]) == ("chats",)
    assert by_default(["test"]) == ()
    assert by_default(["sft", "dpo"]) == ()
    assert [is_held_out(split) for split in ("test_sft", "validation", "chats", "train", "latest")] == [True, True, False, False, False]  # fmt: skip
