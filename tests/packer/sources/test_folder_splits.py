"""A folder's own description of its splits: a file that it lists is read, or the build ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from packer.errors import UserError
from packer.sources.file_sets import find_files


def described(folder: Path, path: str) -> Path:
    (folder / "x").mkdir()
    for name in ("a.jsonl", "x/b.jsonl", "notes.txt"):
        (folder / name).write_text('{"text": "t"}\n')
    card = f"---\nconfigs:\n- config_name: main\n  data_files:\n  - split: train\n    path: {path}\n---\n"
    (folder / "README.md").write_text(card)
    return folder


@pytest.mark.parametrize(
    ("path", "lacking"),
    [
        ("[a.jsonl, missing.jsonl]", "missing.jsonl"),
        ("[missing.jsonl, a.jsonl, x/c.jsonl]", "missing.jsonl, x/c.jsonl"),
        ("[a.jsonl, ./notes.txt]", "./notes.txt"),
        ("missing.jsonl", "missing.jsonl"),
    ],
)
def test_a_listed_file_that_is_not_there_is_named(tmp_path: Path, path: str, lacking: str) -> None:
    with pytest.raises(UserError) as caught:
        find_files(str(described(tmp_path, path)), with_text=False, configuration=None)
    assert caught.value.message == f"{tmp_path}/README.md: the configuration main lists {lacking}, no data file there"
    assert caught.value.hint == "fetch the whole data set, or choose another with --config-name"


def test_a_pattern_may_match_nothing_beside_others(tmp_path: Path) -> None:
    folder = described(tmp_path, '["./a.jsonl", "x/*.jsonl", "y/*.jsonl"]')
    found = find_files(str(folder), with_text=False, configuration=None)
    assert found is not None
    assert found.splits == {"train": (str(folder / "a.jsonl"), str(folder / "x" / "b.jsonl"))}
