"""Wrong uses of both programs, each with its exact two lines and its status: what happened and where, what to do, no full stop.

In this process and before anything heavy is loaded, so that the whole table takes seconds.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import packer
from packer.called import _HERE
from packer.cli import main as packer_main
from packer.config import BuildConfig
from packer.console import Commands
from tests.support import ROOT, SAMPLE, TINY, run_module, write_jsonl
from tests.trainer.shards_fixture import random_rows, write_corpus, write_model
from trainer.cli import main as trainer_main

BUILD = ("build", "chats.jsonl", "--tokenizer", str(TINY))
RUN = ("run", "--shards", "packed", "--model", "tiny", "--init", "random")
SHARDS = "give the folder that `packer build -o` wrote"
FILES = "give a .jsonl, .json, .parquet, .arrow, .csv or .tsv file, or a folder of them: packer build chats.jsonl -o data/packed"

PACKER = [
    ((*BUILD, "--strategy", "optimum"), "--strategy optimum: no such choice", "did you mean --strategy optimal?"),
    ((*BUILD, "--strategy", "zzz"), "--strategy zzz: no such choice", "choices: optimal, bfd, ffd, sequential"),
    ((*BUILD, "--train-on", "assistent"), "--train-on assistent: no such choice", "did you mean --train-on assistant?"),
    ((*BUILD, "--overlong", "truncat"), "--overlong truncat: no such choice", "did you mean --overlong truncate?"),
    ((*BUILD, "--format", "sharegtp"), "--format sharegtp: no such choice", "did you mean --format sharegpt?"),
    ((*BUILD, "--map", "promt=q"), "--map promt: no such choice", "did you mean --map prompt?"),
    ((*BUILD, "--map", "prompt"), "--map prompt: no column", "write --map prompt=COLUMN"),
    ((*BUILD, "--map", "prompt=a", "--map", "prompt=b"), "--map prompt=b: prompt was given before, as a", "give one of them"),
    ((*BUILD, "--encoder", "splinter"), "--encoder splinter: no such choice", "did you mean --encoder splintr?"),
    ((*BUILD, "--engine", "rai"), "--engine rai: no such choice", "did you mean --engine ray?"),
    ((*BUILD, "--empty-answers", "dropp"), "--empty-answers dropp: no such choice", "did you mean --empty-answers drop?"),
    ((*BUILD, "--control-tokens", "spilt"), "--control-tokens spilt: no such choice", "did you mean --control-tokens split?"),
    ((*BUILD, "--capacity", "8k"), "--capacity 8k: not a whole number", "try --capacity 8192"),
    ((*BUILD, "--capacity"), "--capacity: no value was given", "write one behind it, or leave --capacity out"),
    ((*BUILD, "--limit", "1.5"), "--limit 1.5: not a whole number", "give a whole number"),
    ((*BUILD, "--force=yes"), "--force: takes no value", "write --force alone"),
    ((*BUILD, "--no-token-stor"), "packer build: no option --no-token-stor", "did you mean --no-token-store?"),
    ((*BUILD, "-x"), "packer build: no option -x", "see packer build --help"),
    ((*BUILD, "--max-seq-length", "4096"), "packer build: no option --max-seq-length", "did you mean --capacity?"),
    ((*BUILD, "--num_proc", "4"), "packer build: no option --num_proc", "did you mean --workers?"),
    ((*BUILD, "--config", "elsewhere.toml"), "--config elsewhere.toml: unknown key 'sequence_len'", "did you mean capacity?"),
    ((*BUILD, "--quiet", "--verbose"), "--quiet and --verbose were both given", "give one of them"),
    ((*BUILD, "-v", "-q"), "--quiet and --verbose were both given", "give one of them"),
    ((*BUILD, "-o", ""), "--out: no folder was given", "write one behind it: -o data/packed"),
    (("build", "chats.jsonl", "--tokenizer", ""), "--tokenizer: no name was given", "try --tokenizer Qwen/Qwen3.8-27B"),
    (("build", ""), "a data set has no name: '' was given", FILES),
    (("build", "nowhere/*.jsonl"), "nowhere/*.jsonl: no .jsonl, .ndjson, .json, .parquet, .arrow, .csv, .tsv file there", FILES),
    ((*BUILD, "--chat-template", "."), "--chat-template .: cannot be read (Is a directory)", "give a jinja template as a text file"),
    ((*BUILD, "--eval-fraction", "0.1", "--eval-split", "t"), "--eval-fraction and --eval-split were both given", "give one of them"),
    ((*BUILD, "--ray-address", "x"), "--ray-address x: only --engine ray has a cluster", "add --engine ray"),
    ((*BUILD, "--config", "choice.toml"), "--strategy optimum: no such choice", "did you mean --strategy optimal?"),
    ((*BUILD, "--config", "list.toml"), "--config list.toml: capacity = [1]: not a whole number", "write capacity = 1 or another, without quotes"),
    ((*BUILD, "--config", "key.toml"), "--config key.toml: unknown key 'strategie'", "did you mean strategy?"),
    ((*BUILD, "--config", "twice.toml"), "--config twice.toml: not TOML (Cannot overwrite a value (at line 2, column 9))", "write one `key = value` a line, strings in quotes"),
    ((*BUILD, "--config", "."), "--config .: cannot be read (Is a directory)", "give the path of a TOML file"),
    ((*BUILD, "--config"), "--config: no value was given", "write one behind it, or leave --config out"),
    (("buidl",), "packer: no command 'buidl'", "did you mean packer build?"),
    (("stats",), "packer stats: no PATH was given", "`packer stats --help` has an example"),
    (("stats", "packed", "more"), "packer stats: takes no further argument: more", "see packer stats --help"),
    (("stats", "packed", "--ranks", "many"), "--ranks many: not a whole number", "try --ranks 8"),
    (("stats", "chats.jsonl"), "chats.jsonl: data that is not tokenized and packed yet", "`packer build chats.jsonl -o data/packed` does that, once; then give data/packed"),
    (("verify", "packed", "--sample", "0"), "--sample 0: must be at least 1", "try --sample 1000"),
    (("verify", "nowhere"), "nowhere: no such folder", SHARDS),
    (("inspect", "packed", "--split", "trian"), "--split trian: no such choice", "did you mean --split train?"),
    (("inspect", "packed", "--limit", "0"), "--limit 0: must be at least 1", "try --limit 1"),
    (("diff", "packed"), "packer diff: no B was given", "`packer diff --help` has an example"),
    (("repack", "packed", "-o", "x"), "packer repack: no --capacity was given", "`packer repack --help` has an example"),
    (("repack", "packed", "-o", "x", "--capacity", "64", "--strategy", "bdf"), "--strategy bdf: no such choice", "did you mean --strategy bfd?"),
]  # fmt: skip

TENSOR = "nor is there --tensor-parallel: each layer would be cut over ranks, and its kernels are not told how; for a large model: more ranks (each holds its share of weights, gradients and optimiser), --cpu-offload"
TRAINER = [
    (("runn",), "trainer: no command 'runn'", "did you mean trainer run?"),
    (("run",), "trainer run: no --shards was given", "`trainer run --help` has an example"),
    (("check",), "trainer check: no --shards was given", "`trainer check --help` has an example"),
    (("run", "--shards", "nowhere"), "nowhere: no such folder", SHARDS),
    (("run", "--shards", "chats.jsonl"), "chats.jsonl: data that is not tokenized and packed yet", "`packer build chats.jsonl -o data/packed` does that, once; then give data/packed"),
    (("run", "--shards", "packed"), "packed: tokenized with 'hand-made', a folder that is not a model or no longer there", "name the model to train: --model NAME_OR_DIR"),
    (("run", "--shards", "packed", "--model", "./none", "--dry-run"), "./none: no such folder, and not a hub name of the form owner/name", "check --model"),
    ((*RUN, "--steps", "ten"), "--steps ten: not a whole number", "give a whole number"),
    ((*RUN, "--lr", "fast"), "--lr fast: not a number", "try --lr 1e-05"),
    ((*RUN, "--lr", "0"), "--lr 0.0: not a positive number", "give a learning rate such as 1e-5"),
    ((*RUN, "--betas", "a,b"), "--betas a,b: not numbers with commas between them", "see trainer run --help"),
    ((*RUN, "--betas", "0.9"), "--betas 0.9: not two numbers in [0, 1)", "give two numbers such as 0.9,0.95"),
    ((*RUN, "--skip-rows", "99", "--dry-run"), "--skip-rows 99: the corpus has 4 rows, numbered from 0", "`packer inspect --row` shows a row"),
    ((*RUN, "--schedule", "cosin"), "--schedule cosin: no such choice", "did you mean --schedule cosine?"),
    ((*RUN, "--kernels", "fast"), "--kernels fast: no such choice", "choices: auto, fused, reference"),
    ((*RUN, "--check", "qick"), "--check qick: no such choice", "did you mean --check quick?"),
    ((*RUN, "--steps", "1", "--epochs", "1"), "--steps and --epochs were both given", "give one of them: how long the run is must have one answer"),
    ((*RUN, "--warmup", "many"), "--warmup many: neither a number of steps nor a share below 1", "give steps such as 100, or a share of the run such as 0.03"),
    ((*RUN, "--rows-per-step", "0"), "--rows-per-step 0: less than 1", "give a number of at least 1"),
    ((*RUN, "--row-per-step", "2"), "trainer run: no option --row-per-step", "did you mean --rows-per-step?"),
    ((*RUN, "--no-packing"), "trainer run: no option --no-packing", "nor is there --packing: rows are packed when they are built, always; `packer stats` says how full they are"),
    ((*RUN, "--tensor-parallel-size", "4"), "trainer run: no option --tensor-parallel-size", TENSOR),
    ((*RUN, "--tp", "2"), "trainer run: no option --tp", TENSOR),
    ((*RUN, "--packin-rows", "64"), "trainer run: no option --packin-rows", "did you mean --skip-rows?"),
    ((*RUN, "--learning-rte", "1e-5"), "trainer run: no option --learning-rte", "did you mean --lr?"),
    ((*RUN, "--learning_rate", "1e-5"), "trainer run: no option --learning_rate", "did you mean --lr?"),
    ((*RUN, "--gradient_checkpointing"), "trainer run: no option --gradient_checkpointing", "did you mean --activation-checkpointing?"),
    ((*RUN, "--use-liger"), "trainer run: no option --use-liger", "did you mean --kernels?"),
    ((*RUN, "--config", "rte.toml"), "--config rte.toml: unknown key 'learning_rte'", "did you mean lr?"),
    ((*RUN, "--config", "section.toml"), "--config section.toml: unknown section [optim]", "write the options at the top level of the file, without sections"),
    ((*RUN, "--dtype", "fp16"), "--dtype fp16: no such choice", "choices: auto, bf16, fp32, fp64"),
    ((*RUN, "--compile=1"), "--compile: takes no value", "write --compile alone"),
    ((*RUN, "--no-compil"), "trainer run: no option --no-compil", "did you mean --no-compile?"),
    ((*RUN, "more"), "trainer run: takes no further argument: more", "see trainer run --help"),
    ((*RUN, "--config", "lr.toml"), "--config lr.toml: lr = 'fast': not a number", "write lr = 0.5 or another, without quotes"),
    ((*RUN, "--config", "rows.toml"), "--config rows.toml: unknown key 'rows_per_steps'", "did you mean rows_per_step?"),
    ((*RUN, "--eval-every", "2", "--dry-run"), "--eval-every 2: packed has no eval split", "give --eval-shards, or build with --eval-fraction"),
    ((*RUN, "--balance", "windows"), "--balance windows: no such choice", "did you mean --balance window?"),
    ((*RUN, "-q", "-v"), "--quiet and --verbose were both given", "give one of them"),
    (("check", "--shards", "packed", "--dtype", "fp8"), "--dtype fp8: no such choice", "choices: auto, bf16, fp32, fp64"),
    (("export", "packed"), "trainer export: no --out was given", "`trainer export --help` has an example"),
    (("export", "packed", "-o", "m", "--dtype", "bf61"), "--dtype bf61: no such choice", "did you mean --dtype bf16?"),
    (("export", "packed", "-o", "m", "--step", "last"), "--step last: not a whole number", "give a whole number"),
]  # fmt: skip
CASES = [("packer", *case) for case in PACKER] + [("trainer", *case) for case in TRAINER]
PROGRAMS: dict[str, Commands] = {"packer": packer_main, "trainer": trainer_main}  # type: ignore[dict-item]  # groups of that class


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("wrong")
    write_corpus(path / "packed", rows=random_rows(4, seed=0))
    write_model(path / "tiny")
    write_jsonl(path / "chats.jsonl", SAMPLE.read_text(encoding="utf-8").splitlines()[:3])
    for name, text in (
        ("choice", 'strategy = "optimum"'),
        ("list", "capacity = [1]"),
        ("key", 'strategie = "bfd"'),
        ("twice", "seed = 1\nseed = 2"),
        ("lr", 'lr = "fast"'),
        ("rows", "rows_per_steps = 3"),
        ("elsewhere", "sequence_len = 4096"),
        ("rte", "learning_rte = 1e-5"),
        ("section", "[optim]\nlr = 1e-5"),
    ):
        (path / f"{name}.toml").write_text(f"{text}\n")
    return path


@pytest.mark.parametrize(("program", "arguments", "error", "hint"), CASES, ids=lambda value: " ".join(value)[-60:] if isinstance(value, tuple) else "")  # fmt: skip
def test_a_wrong_use_is_its_two_lines_and_status_2(
    folder: Path, monkeypatch: pytest.MonkeyPatch, program: str, arguments: tuple[str, ...], error: str, hint: str
) -> None:
    monkeypatch.chdir(folder)
    result = CliRunner().invoke(PROGRAMS[program], list(arguments), prog_name=program, env={"RANK": "0"})
    assert (result.stderr, result.stdout) == (f"error: {error}\nhint: {hint}\n", "")
    assert result.exit_code == 2


@pytest.mark.parametrize("variable", ["PACKER_BUILD_STRATEGY", "PACKER_BUILD_CAPACITY"])
def test_a_wrong_value_of_the_environment_is_told_alike(variable: str) -> None:
    result = CliRunner().invoke(packer_main, list(BUILD), prog_name="packer", env={variable: "optimum"})
    option = "strategy" if "STRATEGY" in variable else "capacity"
    assert result.stderr.splitlines()[0].startswith(f"error: --{option} optimum: ")
    assert result.exit_code == 2


@pytest.mark.parametrize(
    ("variable", "hint"),
    [
        ("TRAINER_RUN_LRR", "did you mean TRAINER_RUN_LR?"),
        ("TRAINER_RUN_LEARNING_RATE", "did you mean TRAINER_RUN_LR?"),
        ("TRAINER_RUN_ROWS_PER_STEPS", "did you mean TRAINER_RUN_ROWS_PER_STEP?"),
        ("TRAINER_RUN_ZZZ", "unset it, or name one of the options that --help lists"),
    ],
)
def test_a_variable_that_is_no_options_is_refused_and_not_ignored(variable: str, hint: str) -> None:
    result = CliRunner().invoke(trainer_main, list(RUN), prog_name="trainer", env={variable: "1"})
    assert result.stderr == f"error: {variable} is set in the environment: no option has that name\nhint: {hint}\n"
    assert result.exit_code == 2


def test_variables_of_others_and_of_other_commands_are_left_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    others = {
        "TRAINER_COMPARE_SEEDS": "3",
        "TRAINER_RUNNER": "x",
        "TRAINER_RUN_SERVICE_HOST": "10.0.0.7",
        "TRAINER_RUN_PORT_29500_TCP_ADDR": "10.0.0.7",
        "TRAINER_RUN_SEED": "7",
    }
    result = CliRunner().invoke(trainer_main, [*RUN, "--dry-run"], prog_name="trainer", env=others)
    assert (result.exit_code, result.stderr) == (0, "")
    assert "seed = 7\n" in result.stdout
    help_of_it = CliRunner().invoke(trainer_main, ["run", "--help"], env={"TRAINER_RUN_LRR": "1"})
    assert help_of_it.exit_code == 0


def test_keys_that_are_only_there_to_be_refused_are_not_offered(tmp_path: Path) -> None:
    (tmp_path / "z.toml").write_text("zzzz = 1\n")
    result = CliRunner().invoke(trainer_main, [*RUN, "--config", str(tmp_path / "z.toml")])
    assert "hint: keys: shards, " in result.stderr
    assert "tokenizer_check" in result.stderr
    assert "lora" not in result.stderr


def test_every_name_from_elsewhere_leads_to_an_option_that_there_is() -> None:
    ours = {
        option.lstrip("-")
        for command in (packer_main.commands["build"], trainer_main.commands["run"])  # type: ignore[attr-defined]
        for param in command.params
        for option in param.opts
    }
    assert set(_HERE.values()) <= ours


def unheard(arguments: list[str], cwd: Path, stream: str = "stderr") -> subprocess.CompletedProcess[str]:
    """A command whose standard error, or output, is a pipe that nobody reads from."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        return subprocess.run(
            [sys.executable, "-m", *arguments],
            cwd=cwd,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, stream: writer},
            text=True,
            timeout=900,
            check=False,
        )
    finally:
        os.close(writer)


def test_a_closed_standard_error_does_not_change_the_status(folder: Path, tmp_path: Path) -> None:
    wrong = unheard(["packer", *BUILD, "--capacity", "63"], folder)
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert unheard(["trainer", "run", "--shards", "nowhere"], folder).returncode == 2
    write_jsonl(tmp_path / "data.jsonl", ["{", *SAMPLE.read_text(encoding="utf-8").splitlines()[:5]])
    options = ["data.jsonl", "--tokenizer", str(TINY), "--capacity", "4096", "-o", "packed", "-v"]
    assert unheard(["packer", "build", *options], tmp_path).returncode == 1  # a sixth was lost
    assert not (tmp_path / "packed" / "manifest.json").exists()
    built = unheard(["packer", "build", *options, "--max-loss", "20%"], tmp_path)
    assert built.returncode == 0
    assert "train: 1 row of 4,096 slots" in built.stdout
    assert (tmp_path / "packed" / "manifest.json").exists()
    dry = unheard(["packer", "build", *options, "--dry-run"], tmp_path)
    heard = run_module("packer", ["build", *options, "--dry-run"], cwd=tmp_path)
    assert (dry.returncode, dry.stdout) == (0, heard.stdout)


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize(
    "arguments",
    [
        ("packer", "verify", "broken"),
        ("packer", "diff", "other", "broken"),
        ("trainer", "plan", "--shards", "packed", "--model", "tiny", "--device", "cpu", "--memory", "1MB"),
        ("trainer", "check", "--shards", "packed", "--model", "tiny", "--init", "random", "--as-is", "-q"),
    ],
    ids=lambda arguments: " ".join(arguments[:2]),
)
def test_a_reader_who_has_seen_enough_does_not_turn_a_no_into_a_yes(
    folder: Path, arguments: tuple[str, ...], as_json: bool
) -> None:
    if not (folder / "broken").exists():
        for name, capacity in (("other", 1024), ("broken", 2048)):
            data, out = (str(folder / "chats.jsonl"),), folder / name
            packer.build(BuildConfig(datasets=data, tokenizer=str(TINY), capacity=capacity, out=out, workers=1))
        shard = folder / "broken" / "train" / "shard-00000.arrow"
        content = bytearray(shard.read_bytes())
        content[len(content) // 2] ^= 1
        shard.write_bytes(content)
    run = unheard([*arguments, *["--json"] * as_json], folder, stream="stdout")
    assert run.returncode == 1, run.stderr
    assert "Traceback" not in run.stderr
