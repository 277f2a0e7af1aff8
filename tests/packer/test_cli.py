"""Wrong use ends in two lines and status 2, never in a traceback; help answers at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from packer.cli import main
from tests.support import ROOT, SAMPLE, TINY, told, write_jsonl

BUILD = ("build", str(SAMPLE), "--tokenizer", str(TINY))


def two_lines(run: subprocess.CompletedProcess[str], status: int = 2) -> tuple[str, str]:
    assert run.returncode == status, run.stdout + run.stderr
    lines = told(run)
    assert len(lines) == 2, run.stderr
    assert lines[0].startswith("error: ")
    assert lines[1].startswith("hint: ")
    return lines[0].removeprefix("error: "), lines[1].removeprefix("hint: ")


@pytest.mark.parametrize(
    ("arguments", "error", "hint"),
    [
        (("bild",), "packer: no command 'bild'", "did you mean packer build?"),
        (("repak",), "packer: no command 'repak'", "did you mean packer repack?"),
        (("repack", "packed", "--capacty", "64"), "packer repack: no option --capacty", "did you mean --capacity?"),
        (("repack", "packed", "--aling", "64"), "packer repack: no option --aling", "did you mean --align?"),
        (("xyz",), "packer: no command 'xyz'", "commands: build, diff, inspect, repack, stats, verify"),
        (("--verison",), "packer: no option --verison", "did you mean --version?"),
        ((*BUILD, "--capcity", "64"), "packer build: no option --capcity", "did you mean --capacity?"),
        ((*BUILD, "--zzz"), "packer build: no option --zzz", "see packer build --help"),
        ((*BUILD, "--capacity", "abc"), "--capacity abc: not a whole number", "try --capacity 8192"),
        ((*BUILD, "--capacity", "0"), "--capacity 0: must be a positive multiple of 64", "try --capacity 64"),
        ((*BUILD, "--capacity", "-64"), "--capacity -64: must be a positive multiple of 64", "try --capacity 64"),
        ((*BUILD, "--capacity", "1000"), "--capacity 1000: must be a positive multiple of 64", "try --capacity 1024"),
        ((*BUILD, "--max-segments", "1"), "--max-segments 1: must be auto, 0 (no cap) or at least 2", "try --max-segments 64"),
        ((*BUILD, "--capacity", "64000000000"), "--capacity 64000000000: more than 4194304 slots a row", "try --capacity 8192"),
        ((*BUILD, "--max-segments", "²"), "--max-segments ²: must be auto or a number", "try --max-segments auto"),
        ((*BUILD, "--mix", "a.jsonl"), "--mix a.jsonl: no weight", "write --mix a.jsonl=1"),
        ((*BUILD, "--mix", "a.jsonl=much"), "--mix a.jsonl=much: the weight 'much' is not a number", "write --mix a.jsonl=0.5"),
        ((*BUILD, "--mix", "a.jsonl=0"), "--mix a.jsonl=0: the weight must be above 0", "leave the source out, or write --mix NAME=0.5"),
        (("build", "x" * 5000), f"{'x' * 80}: File name too long", "give a .jsonl, .json, .parquet, .arrow, .csv or .tsv file, or a folder of them: packer build chats.jsonl -o data/packed"),
        ((*BUILD, "--max-segments", "many"), "--max-segments many: must be auto or a number", "try --max-segments auto"),
        ((*BUILD, "--max-loss", "much"), "--max-loss much: not a share", "write it as --max-loss 1% or --max-loss 0.01"),
        ((*BUILD, "--max-loss", "101%"), "--max-loss 101%: must be from 0% to 100%", "try --max-loss 1%"),
        ((*BUILD, "--eval-fraction", "1"), "--eval-fraction 1: must be from 0 up to, but not including, 1", "try --eval-fraction 0.01"),
        ((*BUILD, "--shard-rows", "10"), "--shard-rows 10: must be a multiple of 16", "leave it out for shards of about 256 MB"),
        ((*BUILD, "--strategy", "best"), "--strategy best: no such choice", "choices: optimal, bfd, ffd, sequential"),
        ((*BUILD, "--train-on", "user"), "--train-on user: no such choice", "choices: assistant, last, all"),
        ((*BUILD, "--overlong", "cut"), "--overlong cut: no such choice", "choices: auto, drop, truncate, split, error"),
        ((*BUILD, "--format", "alpaca"), "--format alpaca: no such choice", "choices: auto, messages, sharegpt, prompt-completion, instruction, text"),
        ((*BUILD, "--empty-answers", "skip"), "--empty-answers skip: no such choice", "choices: drop, mask, keep"),
        ((*BUILD, "--control-tokens", "drop"), "--control-tokens drop: no such choice", "choices: split, reject, keep"),
        ((*BUILD, "--template-date", "today"), "--template-date today: not a date", "write it as --template-date 2026-01-31"),
        ((*BUILD, "--workers", "-1"), "--workers -1: must be 0 (a worker a core) or more", "leave it out"),
        ((*BUILD, "--seed", "-1"), "--seed -1: must be 0 or more", "try --seed 0"),
        ((*BUILD, "--limit", "0"), "--limit 0: must be at least 1", "leave it out to read everything"),
        ((*BUILD, "--split", "test"), f"--split test: {SAMPLE} has the split train", "try --split train"),
        ((*BUILD, "--eval-split", "test"), f"--eval-split test: {SAMPLE} has no such split, only train", "name its files with --eval-file, or set some aside with --eval-fraction 0.01"),
        ((*BUILD, "--eval-file", str(SAMPLE)), f"{SAMPLE}: named both to train on and to evaluate on", "leave it out of one of them"),
        ((*BUILD, "--eval-file", "org/data"), "--eval-file org/data: no such file or folder", "a split of the hub is --eval-split"),
        ((*BUILD, "--eval-file", "a.jsonl", "--eval-fraction", "0.1"), "--eval-fraction and --eval-file were both given", "give one of them"),
        ((*BUILD, "--config-name", "sft"), f"--config-name sft: {SAMPLE} has no configurations", "leave it out"),
        ((*BUILD, "--revision", "v1"), f"--revision is for data sets on the hub, but {SAMPLE} is not one", "leave it out"),
        (("build", "nowhere.jsonl"), "nowhere.jsonl: no such file or folder", "give a .jsonl, .json, .parquet, .arrow, .csv or .tsv file, or a folder of them: packer build chats.jsonl -o data/packed"),
        (("build", str(SAMPLE), "--tokenizer", "./nowhere"), "--tokenizer ./nowhere: no such folder", "give a folder with a tokenizer.json, or a hub name such as Qwen/Qwen3.8-27B"),
        (("build", str(SAMPLE), "--tokenizer", str(SAMPLE.parent)), f"--tokenizer {SAMPLE.parent}: no tokenizer.json in it", "give a tokenizer of the fast kind: save_pretrained() of one writes that file"),
        ((*BUILD, "--chat-template", "nowhere.jinja"), "--chat-template nowhere.jinja: cannot be read (No such file or directory)", "give a jinja template as a text file"),
        ((*BUILD, "--config", "nowhere.toml"), "--config nowhere.toml: cannot be read (No such file or directory)", "give the path of a TOML file"),
        (("stats",), "packer stats: no PATH was given", "`packer stats --help` has an example"),
        (("stats", "nowhere"), "nowhere: no such folder", "give the folder that `packer build -o` wrote"),
        (("stats", "."), ".: no manifest.json: not a packed folder, or a build that did not finish", "run `packer build` again with the same -o: it writes the manifest last"),
    ],
)  # fmt: skip
def test_wrong_use_is_two_lines_and_status_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], error: str, hint: str
) -> None:
    monkeypatch.chdir(tmp_path)
    run = CliRunner().invoke(main, list(arguments), prog_name="packer")
    assert (run.stderr, run.exit_code) == (f"error: {error}\nhint: {hint}\n", 2)


@pytest.mark.parametrize(
    ("toml", "error", "hint"),
    [
        ("capcity = 64\n", "unknown key 'capcity'", "did you mean capacity?"),
        (
            "[build]\ncapacity = 64\n",
            "unknown section [build]",
            "write the options at the top level of the file, without sections",
        ),
        (
            "capacity = \n",
            "not TOML (Invalid value (at line 1, column 12))",
            "write one `key = value` a line, strings in quotes",
        ),
        ("learning_rte = 1\n", "unknown key 'learning_rte'", "keys: "),
        ("limit = true\n", "limit = true: not a whole number", "write limit = 1"),
        ("limit = 2.7\n", "limit = 2.7: not a whole number", "write limit = 1"),
        ("capacity = inf\n", "capacity = inf: not a whole number", "write capacity = 1"),
        ("force = 5\n", "force = 5: not true or false", "write force = true"),
        ("token_store = 1.5\n", "token_store = 1.5: not true or false", "write token_store = true"),
        ("tokenizer = false\n", "tokenizer = false: not text", "write tokenizer = "),
    ],
)
def test_a_config_file_with_an_unknown_key_is_refused(
    packer_cli, tmp_path: Path, toml: str, error: str, hint: str
) -> None:
    (tmp_path / "build.toml").write_text(toml)
    shown = two_lines(packer_cli(*BUILD, "--config", "build.toml"))
    assert shown[0] == f"--config build.toml: {error}"
    assert shown[1].startswith(hint)


@pytest.mark.parametrize(
    ("rows", "arguments", "error", "hint"),
    [
        ([], (), "data.jsonl: empty: not one conversation in it", "check that the file was written whole, or name another"),
        ([{"title": "x"}], (), "data.jsonl: none of 1 conversations can be used; data.jsonl:1: no column 'messages'; the row has: title", "name the column that holds the messages with --column, or others with --map, as in --map instruction=COLUMN --map output=COLUMN"),
        ([{"messages": []}], ("--column", "chat"), "data.jsonl: none of 1 conversations can be used; data.jsonl:1: no column 'chat'; the row has: messages", "name the column that holds the messages with --column, or others with --map, as in --map instruction=COLUMN --map output=COLUMN"),
        ([{"body": "x"}], ("--format", "text"), "data.jsonl: none of 1 conversations can be used; data.jsonl:1: no column 'text'; the row has: body", "name the column that holds the text with --column"),
        ([{"q": "x"}], ("--format", "instruction"), "data.jsonl: none of 1 conversations can be used; data.jsonl:1: no column 'instruction'; the row has: q", "name them with --map instruction=COLUMN --map output=COLUMN, or give another --format"),
        ([{"messages": "x", "n": 1}], (), "data.jsonl: none of 1 conversations can be used; data.jsonl:1: column 'messages' is text that is not JSON of a list of messages; the row has: messages, n", "each is listed in packed/rejects.jsonl"),
        ([{"q": "x", "r": "y"}], ("--map", "instruction=q", "--map", "output=a"), "data.jsonl: none of 1 conversations can be used; data.jsonl:1: no column 'a'; the row has: q, r", "name the column that holds the messages with --column, or others with --map, as in --map instruction=COLUMN --map output=COLUMN"),
        ([{"question": "x", "answer": "y", "sys": "s"}], ("--map", "system=syss"), "--map system=syss: read from no row: no such column, or one that this format does not read", "did you mean --map system=sys?"),
        ([{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}], "id": 1}], ("--map", "context=ctx"), "--map context=ctx: read from no row: no such column, or one that this format does not read", "columns that nothing reads: id"),
        (["{"], (), "data.jsonl: none of 1 conversations can be used; data.jsonl:1: Expecting property name enclosed in double quotes at column 2", "each is listed in packed/rejects.jsonl"),
    ],
)  # fmt: skip
def test_data_that_cannot_be_used_is_two_lines_and_status_2(
    packer_cli, tmp_path: Path, rows, arguments, error: str, hint: str
) -> None:
    write_jsonl(tmp_path / "data.jsonl", rows) if rows else (tmp_path / "data.jsonl").write_text("")
    run = packer_cli("build", "data.jsonl", "--tokenizer", TINY, "-o", "packed", *arguments)
    assert two_lines(run) == (error, hint)
    assert not (tmp_path / "packed" / "manifest.json").exists()


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.json", "{"), ("a.json", '{"messages": []}'), ("a.parquet", "x"), ("a.arrow", "x"), ("a.csv", "x")],
)
def test_a_file_that_cannot_be_read_is_two_lines_and_status_2(
    packer_cli, tmp_path: Path, name: str, content: str
) -> None:
    (tmp_path / name).write_text(content)
    error, _ = two_lines(packer_cli("build", name, "--tokenizer", TINY, "-o", "packed"))
    assert error.startswith(f"{name}: ")


def test_too_great_a_loss_is_status_1(packer_cli, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "data.jsonl", ["{", *SAMPLE.read_text(encoding="utf-8").splitlines()[:5]])
    error, _ = two_lines(
        packer_cli("build", "data.jsonl", "--tokenizer", TINY, "--capacity", "4096", "-o", "packed"), status=1
    )
    assert error.startswith("16.67% of the conversations were lost, more than --max-loss 1.00%")


def test_options_come_from_the_command_line_then_the_environment_then_the_file(packer_cli, tmp_path: Path) -> None:
    (tmp_path / "build.toml").write_text("capacity = 4096\nseed = 4\nlimit = 50\nmax-loss = '2%'\n")
    run = packer_cli(
        *BUILD, "--config", "build.toml", "--seed", "6", "-o", "packed", PACKER_BUILD_SEED="5", PACKER_BUILD_LIMIT="60"
    )
    assert run.returncode == 0, run.stderr
    manifest = json.loads((tmp_path / "packed" / "manifest.json").read_text())
    assert (manifest["capacity"], manifest["seed"], manifest["options"]["limit"]) == (4096, 6, 60)


def test_dry_run_prints_a_file_that_config_reads_back(packer_cli, tmp_path: Path) -> None:
    run = packer_cli(*BUILD, "--capacity", "4096", "--seed", "3", "--eval-fraction", "5%", "-o", "packed", "--dry-run")
    assert run.returncode == 0, run.stderr
    assert not (tmp_path / "packed").exists()
    values = tomllib.loads(run.stdout)
    assert (values["capacity"], values["seed"], values["eval_fraction"]) == (4096, 3, "5%")
    (tmp_path / "again.toml").write_text(run.stdout)
    again = packer_cli("build", SAMPLE, "--config", "again.toml", "--dry-run")
    assert (again.returncode, again.stdout) == (0, run.stdout)


def test_without_a_command_help_is_shown(packer_cli) -> None:
    run = packer_cli()
    assert run.returncode == 0
    assert "Commands:" in run.stdout


@pytest.mark.parametrize("arguments", [("--help",), ("build", "--help"), ("stats", "--help")])
def test_help_has_an_example_and_shows_defaults(packer_cli, arguments: tuple[str, ...]) -> None:
    run = packer_cli(*arguments)
    assert run.returncode == 0
    assert "packer build chats.jsonl" in run.stdout or "packer stats data/packed" in run.stdout
    if arguments[0] == "build":
        for default in ("8192", "auto", "assistant", "drop", "1%", "Qwen/Qwen3.8-27B"):
            assert f"[default: {default}]" in run.stdout.replace("\n", " ").replace("  ", " ")


def test_help_imports_nothing_heavy() -> None:
    """What makes it slow is imports, so they are what is held: time on a shared machine would prove nothing."""
    code = "import sys; from packer.cli import main; main(['build', '--help'], standalone_mode=False); print([m for m in sys.modules if m.split('.')[0] in %r])"
    heavy = {"numpy", "pyarrow", "transformers", "torch", "datasets", "tokenizers", "rich", "jinja2"}
    run = subprocess.run([sys.executable, "-c", code % heavy], cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stdout.splitlines()[-1] == "[]"


def test_a_reader_that_closes_the_pipe_early_sees_no_traceback() -> None:
    run = subprocess.run(
        f"{sys.executable} -m packer build --help | head -1",
        shell=True,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stderr == ""


@pytest.mark.parametrize("redirect", ["> /dev/full", "2>&-", "| true", "| head -c 1"])
def test_a_stream_that_cannot_be_written_gives_no_traceback(tmp_path: Path, redirect: str) -> None:
    data = write_jsonl(tmp_path / "data.jsonl", SAMPLE.read_text(encoding="utf-8").splitlines()[:5])
    command = f"set -o pipefail; {sys.executable} -m packer build {data} --tokenizer {TINY} --capacity 4096 -o packed {redirect}"
    run = subprocess.run(
        ["bash", "-c", command],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert "Traceback" not in run.stderr
    assert run.returncode == (2 if "full" in redirect else 0), run.stderr
    assert (tmp_path / "packed" / "manifest.json").exists()


@pytest.mark.parametrize(
    "template", ["{% for a in messages %}" * 30 + "{% endfor %}" * 30, "{{ 'a' * (10 ** 11) }}", "{{ (1/0) }}"]
)
def test_a_template_past_pythons_limits_is_two_lines(packer_cli, tmp_path: Path, template: str) -> None:
    (tmp_path / "t.jinja").write_text(template)
    error, _ = two_lines(packer_cli(*BUILD, "--chat-template", "t.jinja"))
    assert error.startswith("--chat-template t.jinja: the chat template")


@pytest.mark.parametrize(
    ("template", "error"),
    [
        (
            "{% for m in messages %}{{ '<|im_start|>' + m.content | upper + '<|im_end|>' }}{% endfor %}",
            "does not count the assistant's text as its own",
        ),
        ("{% for m in messages %}{{ m.content }}", "does not compile"),
    ],
)
def test_a_template_that_cannot_be_trained_with_is_named(packer_cli, tmp_path: Path, template: str, error: str) -> None:
    (tmp_path / "t.jinja").write_text(template)
    shown, _ = two_lines(packer_cli(*BUILD, "--chat-template", "t.jinja"))
    assert shown.startswith("--chat-template t.jinja: the chat template")
    assert error in shown


def test_an_empty_template_file_is_said_to_be_empty(packer_cli, tmp_path: Path) -> None:
    (tmp_path / "t.jinja").write_text("\n")
    shown = two_lines(packer_cli(*BUILD, "--chat-template", "t.jinja"))
    assert shown == ("--chat-template t.jinja: is empty", "give a jinja template as a text file")


@pytest.mark.parametrize(
    "dataset",
    [
        "hf://datasets/someone/some-chats/data.jsonl",
        "http://127.0.0.1:9/chats.jsonl",
        "s3://bucket/chats.jsonl",
    ],
)
def test_what_cannot_be_fetched_is_two_lines(packer_cli, dataset: str) -> None:
    """Nothing listens at the hub's address here, which is what a machine without a network sees."""
    nowhere = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_OFFLINE": "0", "HF_HOME": "hub"}
    run = packer_cli("build", dataset, "--tokenizer", TINY, "-o", "packed", **nowhere)
    error, _ = two_lines(run)
    assert dataset in error


NOTE_CONNECTIONS = """
import socket
connect = socket.socket.connect
def noted(self, address):
    with open("connections", "a") as file:
        print(address, file=file)
    return connect(self, address)
socket.socket.connect = noted
"""


@pytest.mark.parametrize(
    ("dataset", "tokenizer", "what", "named"),
    [
        (SAMPLE, "someone/a-tokenizer", "the tokenizer of someone/a-tokenizer", "--tokenizer someone/a-tokenizer"),
        ("someone/some-chats", TINY, "the data set someone/some-chats", "someone/some-chats (split train)"),
    ],
)
def test_what_the_hub_is_asked_for_is_said_while_nobody_answers_and_that_is_soon_over(
    packer_cli, tmp_path: Path, dataset: Path | str, tokenizer: Path | str, what: str, named: str
) -> None:
    nowhere = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_OFFLINE": "0", "HF_HOME": "hub"}
    (tmp_path / "sitecustomize.py").write_text(NOTE_CONNECTIONS)
    run = packer_cli("build", dataset, "--tokenizer", tokenizer, **nowhere, PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}")
    tries = (tmp_path / "connections").read_text().splitlines()
    assert set(tries) == {"('127.0.0.1', 9)"}
    assert len(tries) <= 4  # at once and after 1, 2 and 3 s; the hub's own client tries for 23 s
    assert run.returncode == 2
    said, error, hint = told(run)
    assert said == f"looking for {what} on 127.0.0.1:9"
    assert error == f"error: {named}: 127.0.0.1:9 does not answer (Connection refused)"
    assert hint.startswith("hint: ")


def test_help_lists_every_command(packer_cli) -> None:
    run = packer_cli("--help")
    listed = run.stdout.split("Commands:\n")[1].splitlines()
    assert [line.split()[0] for line in listed if line.strip()] == [
        "build",
        "diff",
        "inspect",
        "repack",
        "stats",
        "verify",
    ]


def test_quiet_says_nothing_and_verbose_tells_of_every_stage(packer_cli) -> None:
    build = ("build", SAMPLE, "--tokenizer", TINY, "--capacity", "4096", "--limit", "40", "--workers", "1")
    quiet = packer_cli(*build, "-o", "packed", "-q")
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (0, "", "")
    plain = packer_cli(*build, "-o", "other", "--max-segments", "4")
    loud = packer_cli(*build, "-o", "other", "--max-segments", "4", "--force", "-v")
    assert told(plain) == []
    assert f"source: {SAMPLE} × 1" in loud.stderr
    assert "tokenizer: " in loud.stderr
    assert packer_cli("repack", "packed", "-o", "third", "--capacity", "2048", "--max-loss", "50%", "-q").stdout == ""
    stages = packer_cli("repack", "packed", "-o", "fourth", "--capacity", "2048", "--max-loss", "50%", "-v").stderr
    assert "plan train: 39 examples in " in stages
    assert "write train rows: " in stages
    different = packer_cli("diff", "packed", "third", "-q")
    assert (different.returncode, different.stdout) == (1, "")
    fine = packer_cli("verify", "packed", "--quiet")
    assert (fine.returncode, fine.stdout, fine.stderr) == (0, "", "")


def test_a_map_weights_and_unread_columns_stand_in_the_manifest_and_the_report(packer_cli, tmp_path: Path) -> None:
    chat = [{"from": "human", "value": "Is 2 even?"}, {"from": "gpt", "value": "Nope.", "train": False}]
    chat += [{"from": "human", "value": "Sure?"}, {"from": "gpt", "value": "It is."}]
    write_jsonl(tmp_path / "chats.jsonl", [{"chat": chat, "id": 7}, {"chat": chat[:1] + chat[3:], "id": 8}])
    run = packer_cli("build", "chats.jsonl", "--tokenizer", TINY, "-o", "packed", "--map", "messages=chat")
    assert run.returncode == 0, run.stderr
    manifest = json.loads((tmp_path / "packed" / "manifest.json").read_text())
    assert manifest["options"]["map"] == '["messages=chat"]'
    assert manifest["ledger"]["notes"] == {"loss weight": {"train=false": 1}, "unread column": {"id": 2}}
    assert "loss weight: train=false 1" in run.stdout + run.stderr
    assert "unread column: id 2" in run.stdout + run.stderr
    learnt = packer_cli("inspect", "packed", "--supervised").stdout
    assert learnt.count("It is.") == 2
    assert "Nope." not in learnt
    # The options are read back.
    assert packer_cli("verify", "packed", "--deep").returncode == 0
