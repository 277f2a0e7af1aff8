"""Options: what cannot be meant is refused in two lines; what is meant survives a round trip through a file."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from packer.console import to_toml
from packer.errors import UserError
from tests.support import ROOT, run_module
from tests.trainer.shards_fixture import random_rows, write_corpus, write_model
from trainer.config import RunConfig, warmup_steps


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"steps": 2, "epochs": 1}, "--steps and --epochs"),
        ({"steps": 0}, "--steps 0"),
        ({"rows_per_step": 0}, "--rows-per-step 0"),
        ({"lr": 0.0}, "--lr 0.0"),
        ({"lr": float("nan")}, "--lr nan"),
        ({"betas": (0.9, 1.0)}, "--betas"),
        ({"betas": (0.9,)}, "--betas"),
        ({"clip": -1.0}, "--clip -1.0"),
        ({"weight_decay": float("inf")}, "--weight-decay inf"),
        ({"warmup": "many"}, "--warmup many"),
        ({"warmup": "1.5"}, "--warmup 1.5"),
        ({"seed": -1}, "--seed -1"),
        ({"seed": 2**63}, "--seed 9223372036854775808: more than"),
        ({"steps": 2**31}, "--steps 2147483648: more than"),
        ({"clip": float("nan")}, "--clip nan: not a finite number"),
        ({"clip": float("inf")}, "--clip inf: not a finite number"),
        ({"weight_decay": float("nan")}, "--weight-decay nan: not a finite number"),
        ({"betas": (float("nan"), 0.9)}, "--betas"),
        ({"warmup": "nan"}, "--warmup nan"),
        ({"warmup": "inf"}, "--warmup inf"),
        ({"skip_rows": (3, -1)}, "--skip-rows -1"),
        ({"schedule": "cosin"}, "--schedule cosin"),
    ],
)
def test_a_value_that_cannot_be_meant_is_refused_by_its_option(wrong: dict[str, object], named: str) -> None:
    with pytest.raises(UserError) as caught:
        RunConfig(shards="x", **wrong)  # type: ignore[arg-type]
    assert caught.value.message.startswith(named)
    assert caught.value.hint


def test_warm_up_is_a_number_of_steps_or_a_share_of_them() -> None:
    assert [warmup_steps(text, total=200) for text in ("0", "7", "0.03", "0.001", "0.0")] == [0, 7, 6, 1, 0]


def test_help_answers_at_once_for_it_imports_little_and_neither_torch_numpy_nor_pyarrow() -> None:
    code = (
        "import sys; before = len(sys.modules); import trainer.cli; trainer.cli.main(['run', '--help'], standalone_mode=False); "
        "print(len(sys.modules) - before, *({'torch', 'numpy', 'pyarrow', 'transformers'} & sys.modules.keys()))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    # 85 modules are click, half the standard library they are of, and our own; numpy alone would be 140 more.
    assert int(result.stdout.splitlines()[-1]) < 130


def test_every_option_of_the_config_is_an_option_of_run_and_the_other_way_round() -> None:
    from trainer.cli import run

    shown = {param.name for param in run.params if not getattr(param, "hidden", False)}
    assert shown - {"config", "dry_run", "quiet", "verbose"} == set(RunConfig(shards="x").options())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("config")
    write_corpus(path / "packed", rows=random_rows(11, seed=0), eval_rows=random_rows(3, seed=1))
    write_model(path / "tiny")
    return path


def run_cli(*arguments: str) -> tuple[int, str, str]:
    from trainer.cli import main

    result = CliRunner().invoke(main, ["run", *arguments], env={"RANK": "0"})
    return result.exit_code, result.stdout, result.stderr


def test_dry_run_prints_a_file_that_config_reads_back(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    said = [
        "--shards",
        "packed",
        "--model",
        "tiny",
        "--init",
        "random",
        "--steps",
        "7",
        "--betas",
        "0.8,0.9",
        "--skip-rows",
        "1,4",
        "--lr",
        "0.002",
        "--warmup",
        "3",
    ]
    status, out, _ = run_cli(*said, "--dry-run")
    assert status == 0
    assert "# steps: 7 steps of 8 rows" in out
    (tmp_path / "run.toml").write_text(out)
    again = run_cli("--config", str(tmp_path / "run.toml"), "--dry-run")
    assert again == (0, out, "")
    document = tomllib.loads(out)
    assert (document["betas"], document["skip_rows"], document["warmup"]) == ([0.8, 0.9], [1, 4], "3")
    assert not (folder / "runs").exists()


def test_the_command_line_goes_before_the_environment_before_the_file(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(
        to_toml(
            {
                "shards": str(folder / "packed"),
                "model": str(folder / "tiny"),
                "init": "random",
                "seed": 1,
                "steps": 1,
                "clip": 7.0,
            }
        )
    )

    result = run_module(
        "trainer",
        ["run", "--config", tmp_path / "run.toml", "--steps", "3", "--dry-run"],
        cwd=tmp_path,
        TRAINER_RUN_STEPS="2",
        TRAINER_RUN_SEED="5",
    )
    document = tomllib.loads(result.stdout)
    assert (document["steps"], document["seed"], document["clip"]) == (3, 5, 7.0)


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (["--shards", "nope"], "nope: no such folder", "packer build"),
        (["--shards", "tiny"], "no manifest.json", "packer build"),
        ([], "no --shards was given", "--help"),
        (["--shards", "packed"], "'hand-made'", "--model NAME_OR_DIR"),
        (["--shards", "packed", "--learning-rte", "1"], "no option --learning-rte", "--lr"),
        (["--shards", "packed", "--row-per-step", "1"], "no option --row-per-step", "--rows-per-step"),
        (["--shards", "packed", "--model", "tiny", "--dtype", "fp16"], "--dtype fp16: no such choice", "fp64"),
        (["--shards", "packed", "--model", "tiny", "--betas", "a,b"], "a,b", "--help"),
        (["--shards", "packed", "--model", "tiny", "--skip-rows", "11"], "--skip-rows 11", "row"),
        (
            ["--shards", "packed", "--model", "tiny", "--eval-every", "0", "--eval-shards", "packed"],
            "--eval-every 0",
            "leave one",
        ),
        (["--shards", "packed", "--model", "tiny", "--resume", "elsewhere"], "--resume elsewhere", "step-"),
        (["--shards", "packed", "--model", "tiny"], "no weights", "--init random"),
    ],
)
def test_wrong_use_ends_in_two_lines_and_status_2(
    folder: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str, hint: str
) -> None:
    monkeypatch.chdir(folder)
    status, _, err = run_cli(*arguments)
    lines = err.splitlines()
    assert status == 2
    assert len(lines) == 2, err
    assert lines[0].startswith("error: ")
    assert message in lines[0]
    assert lines[1].startswith("hint: ")
    assert hint in lines[1]


def test_an_unknown_key_of_a_file_is_named_with_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text('shards = "packed"\nwarm-upp = 3\n')
    status, _, err = run_cli("--config", str(tmp_path / "run.toml"))
    assert status == 2
    assert "'warm-upp'" in err
    assert "did you mean warmup?" in err
