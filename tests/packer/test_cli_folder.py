"""The commands that read a folder: what they print where, and with which status they end."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

import packer
from packer.cli import main
from packer.config import BuildConfig
from tests.packer.broken_folder import edit_manifest, rewrite_rows
from tests.support import SAMPLE, TINY, told, write_jsonl


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("folder")
    source = write_jsonl(place / "chats.jsonl", SAMPLE.read_text(encoding="utf-8").splitlines()[:30])
    packer.build(
        BuildConfig(
            datasets=(str(source),), tokenizer=str(TINY), capacity=4096, out=place / "packed", workers=1, max_loss=1
        )
    )
    return place / "packed"


@pytest.fixture
def folder(built: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(built, tmp_path / "packed"))


def break_positions(folder: Path) -> None:
    def change(columns) -> None:
        columns["position_ids"][2, 5] = 0

    rewrite_rows(folder, "train/shard-00000.arrow", change)


@pytest.mark.parametrize("command", ["stats", "verify", "inspect", "diff", "repack"])
def test_help_has_an_example(packer_cli, command: str) -> None:
    run = packer_cli(command, "--help")
    assert run.returncode == 0
    assert f"packer {command} data/packed" in run.stdout


@pytest.mark.parametrize(
    ("arguments", "error", "hint"),
    [
        (("verfy", "packed"), "packer: no command 'verfy'", "did you mean packer verify?"),
        (("stat", "packed"), "packer: no command 'stat'", "did you mean packer stats?"),
        (("inspct", "packed"), "packer: no command 'inspct'", "did you mean packer inspect?"),
        (("dif", "packed"), "packer: no command 'dif'", "did you mean packer diff?"),
        (("verify", "packed", "--deeep"), "packer verify: no option --deeep", "did you mean --deep?"),
        (("inspect", "packed", "--exmple", "1"), "packer inspect: no option --exmple", "did you mean --example?"),
        (("inspect", "packed", "--row", "1", "--example", "1"), "--row and --example were both given", "give --row alone"),
        (("inspect", "packed", "--split", "test"), "--split test: no such choice", "choices: train, eval"),
        (("verify", "nowhere"), "nowhere: no such folder", "give the folder that `packer build -o` wrote"),
        (("inspect", "."), ".: no manifest.json: not a packed folder, or a build that did not finish", "run `packer build` again with the same -o: it writes the manifest last"),
        (("diff", "packed"), "packer diff: no B was given", "`packer diff --help` has an example"),
    ],
)  # fmt: skip
def test_wrong_use_is_two_lines_and_status_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], error: str, hint: str
) -> None:
    monkeypatch.chdir(tmp_path)
    run = CliRunner().invoke(main, list(arguments), prog_name="packer")
    assert (run.stderr, run.exit_code) == (f"error: {error}\nhint: {hint}\n", 2)


@pytest.mark.usefixtures("folder")
def test_an_example_out_of_range_is_two_lines_with_the_range(packer_cli) -> None:
    run = packer_cli("inspect", "packed", "--example", "30")
    assert run.returncode == 2
    assert told(run) == ["error: --example 30: packed has 30 examples", "hint: give one from 0 to 29"]


@pytest.mark.usefixtures("folder")
def test_verify_says_that_all_is_fine(packer_cli) -> None:
    run = packer_cli("verify", "packed")
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.splitlines()[1].startswith("fine: every digest")
    deep = packer_cli("verify", "packed", "--deep", "--sample", "7")
    assert "source: 7 conversations tokenized again, 7 examples compared" in deep.stdout


def test_verify_names_what_is_broken_and_ends_with_1(packer_cli, folder: Path) -> None:
    break_positions(folder)
    edit_manifest(folder, lambda document: document.update(max_token_id=4095))
    run = packer_cli("verify", "packed")
    assert run.returncode == 1
    assert told(run) == [
        "error: packed: 2 broken",
        "hint: restore what is named from a copy, or build the folder again",
    ]
    assert "position_ids must restart at 0 in each segment\n  train/shard-00000.arrow, row 2\n" in run.stdout
    assert "max_token_id must be the largest there is\n  manifest.json: it is 4095" in run.stdout
    json_run = packer_cli("verify", "packed", "--json")
    document = json.loads(json_run.stdout)
    assert (json_run.returncode, document["ok"], document["broken"]) == (1, False, 2)
    assert document["rules"]["position_ids must restart at 0 in each segment"] == 1
    assert document["findings"][0] == {
        "rule": "position_ids must restart at 0 in each segment",
        "file": "train/shard-00000.arrow",
        "row": 2,
        "example": None,
        "source": "",
        "detail": "",
    }


def test_a_source_that_is_gone_ends_verify_deep_with_2(packer_cli, folder: Path) -> None:
    log = json.loads((folder / "build-log.json").read_text())
    log["sources"] = ["gone.jsonl"]
    (folder / "build-log.json").write_text(json.dumps(log))
    run = packer_cli("verify", "packed", "--deep")
    assert run.returncode == 2
    assert told(run) == [
        "error: chats.jsonl: not compared (gone.jsonl: No such file or directory)",
        "hint: verify where the sources still lie as build-log.json has them; the rest of the folder is fine",
    ]
    assert "source: chats.jsonl not compared: gone.jsonl: No such file or directory" in run.stdout
    assert json.loads(packer_cli("verify", "packed", "--json").stdout)["ok"] is True


def test_a_hub_that_cannot_be_reached_is_said_by_verify_deep(packer_cli, folder: Path) -> None:
    """Nothing listens at the hub's address here, which is what a machine without a network sees."""

    def from_the_hub(document) -> None:
        document["sources"][0].update(name="someone/some-chats", split="train", files=[])

    edit_manifest(folder, from_the_hub)
    run = packer_cli("verify", "packed", "--deep", HF_ENDPOINT="http://127.0.0.1:9", HF_HOME="hub")
    assert run.returncode == 2
    error, hint = told(run)
    assert error.startswith("error: someone/some-chats: not compared (")
    assert hint.startswith("hint: ")


def test_what_stands_in_the_folder_is_escaped(packer_cli, folder: Path) -> None:
    edit_manifest(folder, lambda document: document["tokenizer"].update(name="/\x1b[31m[bold]x"))
    run = packer_cli("verify", "packed")
    assert "\x1b" not in run.stdout
    assert "tokenizer.name is /\\x1b[31m[bold]x" in run.stdout


@pytest.mark.usefixtures("folder")
def test_inspect_without_a_choice_shows_row_0(packer_cli) -> None:
    assert packer_cli("inspect", "packed").stdout == packer_cli("inspect", "packed", "--row", "0").stdout
    learnt = packer_cli("inspect", "packed", "--supervised")
    assert learnt.returncode == 0
    assert learnt.stdout.count("── example ") == 8
