"""What the trainer does not do, and how it says so: two lines that help, before anything is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from packer.errors import UserError
from tests.support import chat, write_jsonl
from trainer.cli import main


def message(*arguments: str) -> tuple[str, str]:
    with pytest.raises(UserError) as error:
        main(["run", *arguments], standalone_mode=False)
    return error.value.message, error.value.hint


def test_raw_rows_are_not_tokenized_here_and_it_is_said_how_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "raw").mkdir()
    file = write_jsonl(tmp_path / "raw" / "chats.jsonl", [chat("hello", "good day")])
    with pytest.raises(SystemExit) as ended:
        main(["run", "--shards", str(file), "--model", "x/y"])
    out, err = capsys.readouterr()
    assert (ended.value.code, out) == (2, "")
    assert err.splitlines() == [
        f"error: {file}: data that is not tokenized and packed yet",
        f"hint: `packer build {file} -o data/packed` does that, once; then give data/packed",
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["raw"]  # no run's folder was begun


@pytest.mark.parametrize("name", ["rows.parquet", "rows.jsonl.gz", "rows.json"])
def test_a_folder_of_raw_rows_is_known_for_what_it_is(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"")
    said, hint = message("--shards", str(tmp_path), "--model", "x/y")
    assert said == f"{tmp_path}: data that is not tokenized and packed yet (no manifest.json)"
    assert hint.startswith(f"`packer build {tmp_path} -o")


@pytest.mark.parametrize("left", ["tokens", "rejects.jsonl"])
def test_a_build_that_did_not_finish_is_told_apart_from_raw_rows(tmp_path: Path, left: str) -> None:
    (tmp_path / "build-log.json").write_text("{}")
    (tmp_path / left).mkdir() if "." not in left else (tmp_path / left).write_text("")
    assert "a build that did not finish" in message("--shards", str(tmp_path), "--model", "x/y")[0]


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (["--context-parallel", "2"], "boundaries of its examples be lost"),
        (["--context-parallel=2"], "boundaries of its examples be lost"),
        (["--sequence-parallel"], "boundaries of its examples be lost"),
        (["--tensor-parallel", "8"], "kernels are not told how"),
        (["--pipeline-parallel", "2"], "do not reach"),
        (["--lora"], "all weights"),
        (["--lora", "16"], "all weights"),
        (["--packing"], "always"),
    ],
)
def test_what_is_not_there_is_refused_by_name(given: list[str], why: str) -> None:
    said, hint = message("--shards", "gone", *given)
    assert said.startswith(f"{given[0].partition('=')[0]}: there is no such thing here: ")
    assert why in said
    assert hint


def test_so_it_is_in_a_configuration_file(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text('shards = "packed"\ncontext_parallel = 2\n')
    assert message("--config", str(tmp_path / "run.toml"))[0].startswith("--context-parallel: there is no such thing")


@pytest.mark.parametrize("line", ["packing = true", "packing = false", 'packing = "ffd"', "lora = true", "lora = 8"])
def test_in_a_file_it_is_refused_whatever_its_value_is(tmp_path: Path, line: str) -> None:
    (tmp_path / "run.toml").write_text(f'shards = "packed"\n{line}\n')
    said, _ = message("--config", str(tmp_path / "run.toml"))
    assert said.startswith(f"--{line.split()[0]}: there is no such thing here: ")


def test_a_key_that_is_not_known_is_not_answered_with_one_that_is_refused_but_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text('shards = "packed"\npackin = true\n')
    said, hint = message("--config", str(tmp_path / "run.toml"))
    assert said.endswith("unknown key 'packin'")
    assert hint.startswith("nor is there packing: rows are packed when they are built")


def test_help_does_not_offer_what_is_refused() -> None:
    shown = CliRunner().invoke(main, ["run", "--help"]).output
    assert "--context-parallel" not in shown
    assert "--router-aux-loss" in shown
