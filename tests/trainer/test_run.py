"""Whole runs as a user starts them: alone, by two ranks, killed, resumed, interrupted, on damaged shards."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from packer.errors import UserError
from tests.support import ROOT
from tests.trainer.shards_fixture import Example, random_rows, write_corpus, write_model
from trainer import RunConfig, run

STEPS = 12
KEYS = [
    "step",
    "epoch",
    "loss",
    "lr",
    "grad_norm",
    "slots",
    "useful_tokens",
    "supervised_tokens",
    "slots_per_s",
    "useful_tokens_per_s",
    "supervised_tokens_per_s",
    "step_s",
    "data_wait_s",
    "recompiles",
    "skipped",
    "peak_memory_bytes",
]


def options(folder: Path, out: str, **more: object) -> dict[str, object]:
    return {
        "shards": str(folder / "packed"),
        "model": str(folder / "tiny"),
        "init": "random",
        "steps": STEPS,
        "rows_per_step": 4,
        "lr": 1e-2,
        "log_every": 1,
        "save_every": 4,
        "out": str(folder / out),
        **more,
    }


def arguments(chosen: dict[str, object]) -> list[str]:
    return ["run", *(part for name, value in chosen.items() for part in (f"--{name.replace('_', '-')}", str(value)))]


def started(chosen: dict[str, object], *, ranks: int = 1) -> subprocess.Popen[str]:
    """A run as a user starts it."""
    launcher = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), "-m"] if ranks > 1 else []
    return subprocess.Popen(
        [sys.executable, "-m", *launcher, "trainer", *arguments(chosen)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def lines(folder: Path, out: str) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / out / "metrics.jsonl").read_text().splitlines()]


def losses(folder: Path, out: str) -> list[float]:
    return [line["loss"] for line in lines(folder, out) if "loss" in line]


def await_path(path: Path, process: subprocess.Popen[str]) -> None:
    until = time.monotonic() + 300
    while not path.exists():
        assert process.poll() is None, process.communicate()[1][-2000:]
        assert time.monotonic() < until, f"{path} never came"
        time.sleep(0.005)


def family(process: int) -> list[int]:
    """A process and all it started: torchrun's ranks are not in its process group."""
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return [process, *(one for child in children for one in family(int(child)))]


def kill_after_step_4(chosen: dict[str, object], *, ranks: int) -> None:
    process = started(chosen, ranks=ranks)
    await_path(Path(str(chosen["out"])) / "checkpoints" / "step-000004", process)
    for one in family(process.pid):
        os.kill(one, signal.SIGKILL)
    process.communicate()
    assert not (Path(str(chosen["out"])) / "checkpoints" / "step-000012").exists(), "it was done before it was killed"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("run")
    write_corpus(path / "packed", rows=random_rows(21, seed=0), eval_rows=random_rows(3, seed=1))
    write_model(path / "tiny")
    return path


@pytest.fixture(scope="module")
def uninterrupted(folder: Path) -> list[float]:
    assert run(RunConfig(**options(folder, "whole", eval_every=6))) == 0  # type: ignore[arg-type]
    return losses(folder, "whole")


def test_a_run_folder_holds_what_was_run_and_how_it_went(folder: Path, uninterrupted: list[float]) -> None:
    assert len(uninterrupted) == STEPS
    assert uninterrupted[-1] < uninterrupted[0]
    steps = [line for line in lines(folder, "whole") if "loss" in line]
    assert all(list(line) == KEYS for line in steps)
    assert [line["step"] for line in steps] == list(range(1, STEPS + 1))
    assert {line["slots"] for line in steps} == {4 * 64}
    assert [(line["step"], line["eval_loss"] > 0) for line in lines(folder, "whole") if "eval_loss" in line] == [
        (6, True),
        (12, True),
    ]
    assert sorted(path.name for path in (folder / "whole" / "checkpoints").iterdir()) == [
        "step-000004",
        "step-000008",
        "step-000012",
    ]
    # What config.toml says is the same run: it is finished.
    from click.testing import CliRunner

    from trainer.cli import main

    result = CliRunner().invoke(main, ["run", "--config", str(folder / "whole" / "config.toml")])
    assert result.exit_code == 0, result.stderr
    assert "already holds all 12 steps" in result.stdout
    assert "--out" in result.stdout
    assert "not what that run did" not in result.stdout
    other = CliRunner().invoke(main, ["run", "--config", str(folder / "whole" / "config.toml"), "--lr", "0.5"])
    assert other.exit_code == 0, other.stderr
    assert "asked for now, and not what that run did: lr: 0.01 → 0.5" in other.stdout


@pytest.mark.usefixtures("uninterrupted")
def test_token_counts_are_those_of_the_rows(folder: Path) -> None:
    rows: list[list[Example]] = random_rows(21, seed=0)
    from trainer.prepare import prepare

    order = prepare(RunConfig(**options(folder, "whole"))).order  # type: ignore[arg-type]
    for line in (line for line in lines(folder, "whole") if "loss" in line):
        examples = [example for row in order.step(int(line["step"]) - 1).rows for example in rows[int(row)]]
        assert line["useful_tokens"] == sum(len(example.ids) for example in examples)
        assert line["supervised_tokens"] == sum(sum(example.mask) for example in examples)


def test_a_run_that_was_killed_goes_on_with_exactly_the_losses_of_one_that_was_not(
    folder: Path, uninterrupted: list[float]
) -> None:
    chosen = options(folder, "killed", eval_every=0)
    kill_after_step_4(chosen, ranks=1)
    assert run(RunConfig(**chosen)) == 0  # type: ignore[arg-type]
    assert losses(folder, "killed") == uninterrupted
    assert [line["step"] for line in lines(folder, "killed")] == list(range(1, STEPS + 1))


def test_two_ranks_train_as_one_and_one_goes_on_where_two_were_killed(folder: Path, uninterrupted: list[float]) -> None:
    chosen = options(folder, "shared", eval_every=0)
    kill_after_step_4(chosen, ranks=2)
    assert losses(folder, "shared")[:4] == pytest.approx(uninterrupted[:4], rel=1e-5)
    assert run(RunConfig(**chosen)) == 0  # type: ignore[arg-type]
    assert losses(folder, "shared") == pytest.approx(uninterrupted, rel=1e-4)


@pytest.mark.usefixtures("uninterrupted")
def test_sigterm_saves_first_and_says_so_in_its_status(folder: Path) -> None:
    process = started(options(folder, "stopped", eval_every=0, save_every=0, steps=4000))
    await_path(folder / "stopped" / "metrics.jsonl", process)
    while not losses(folder, "stopped"):
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=900)
    assert process.returncode == 143, err
    assert "stopped SIGTERM after step" in out
    saved = list((folder / "stopped" / "checkpoints").iterdir())
    assert [json.loads((path / "run.json").read_text())["step"] for path in saved] == [len(losses(folder, "stopped"))]


def test_a_damaged_shard_stops_both_ranks_with_its_name_told_once(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "packed", tmp_path / "packed")
    shutil.copytree(folder / "tiny", tmp_path / "tiny")
    shard = tmp_path / "packed" / "train" / "shard-00001.arrow"
    data = bytearray(shard.read_bytes())
    data[-200] ^= 1  # in the file's footer or past the last row: no rule of a row sees it
    shard.write_bytes(data)
    process = started(options(tmp_path, "damaged"), ranks=2)
    _, err = process.communicate(timeout=900)
    assert process.returncode != 0
    assert err.count("error: ") == 1, err[-2000:]
    assert "shard-00001.arrow" in next(line for line in err.splitlines() if line.startswith("error: "))
    assert not (tmp_path / "damaged" / "checkpoints" / "step-000012").exists()


def changed(folder: Path, **more: object) -> RunConfig:
    return RunConfig(**{**options(folder, "whole"), **more})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("other", "named"),
    [
        ({"rows_per_step": 2}, "--rows-per-step: 4 then, 2 now"),
        ({"steps": 13}, "--steps or --epochs"),
        ({"seed": 1}, "--seed: 0 then, 1 now"),
        ({"balance": "off"}, "--balance: batch then, off now"),
        ({"balance": "window"}, "--balance: batch then, window now"),
        ({"loss_weighting": "example"}, "--loss-weighting: token then, example now"),
        ({"steps": None, "epochs": 3}, "--steps or --epochs"),
    ],
)
@pytest.mark.usefixtures("uninterrupted")
def test_a_run_does_not_go_on_with_other_rows(folder: Path, other: dict[str, object], named: str) -> None:
    with pytest.raises(UserError, match="saved by another run") as caught:
        run(changed(folder, **other))
    assert named in caught.value.message


@pytest.mark.usefixtures("uninterrupted")
def test_a_run_does_not_go_on_with_another_corpus(folder: Path, tmp_path: Path) -> None:
    write_corpus(tmp_path / "packed", rows=random_rows(21, seed=7), eval_rows=random_rows(3, seed=1))
    with pytest.raises(UserError, match=r"saved by another run \(--shards: [0-9a-f]{32} then, [0-9a-f]{32} now\)"):
        run(changed(folder, shards=str(tmp_path / "packed")))


@pytest.mark.usefixtures("uninterrupted")
def test_a_run_with_checkpoints_is_never_written_over(folder: Path) -> None:
    with pytest.raises(UserError, match="step-000012, and --resume never would write over it"):
        run(changed(folder, resume="never"))


def test_cpu_offload_on_a_cpu_is_said_to_do_nothing_and_does_nothing(
    folder: Path, uninterrupted: list[float], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = {**options(folder, "x", cpu_offload=True, save_every=0, eval_every=0), "out": str(tmp_path / "offload")}
    assert run(RunConfig(**chosen)) == 0  # type: ignore[arg-type]
    assert "--cpu-offload does nothing here" in capsys.readouterr().out
    assert losses(tmp_path, "offload") == uninterrupted


def test_an_unfinished_checkpoint_is_not_one(folder: Path, uninterrupted: list[float], tmp_path: Path) -> None:
    shutil.copytree(folder / "whole", tmp_path / "whole")
    shutil.rmtree(tmp_path / "whole" / "checkpoints" / "step-000012")
    (tmp_path / "whole" / "checkpoints" / "step-000010").mkdir()
    (tmp_path / "whole" / "checkpoints" / "step-000012" / "rest").mkdir(parents=True)
    half = tmp_path / "whole" / "checkpoints" / ".step-000012.tmp"
    half.mkdir()
    (half / "__0_0.distcp").write_bytes(b"half")
    assert run(changed(folder, out=str(tmp_path / "whole"), keep=1)) == 0
    assert losses(tmp_path, "whole") == uninterrupted
    assert sorted(path.name for path in (tmp_path / "whole" / "checkpoints").iterdir()) == [
        "step-000010",
        "step-000012",
    ]


@pytest.mark.usefixtures("uninterrupted")
def test_a_damaged_checkpoint_is_named(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "whole" / "checkpoints" / "step-000004", tmp_path / "saved")
    (tmp_path / "saved" / ".metadata").unlink()
    with pytest.raises(UserError, match=r"saved/\.metadata: cannot be read \(No such file"):
        run(changed(folder, out=str(tmp_path / "again"), resume=str(tmp_path / "saved")))


def test_another_folder_can_go_on_from_a_checkpoint(
    folder: Path, uninterrupted: list[float], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = folder / "whole" / "checkpoints" / "step-000008"
    assert run(changed(folder, out=str(tmp_path / "on"), resume=str(saved), log_every=4, clip=0.5)) == 0
    assert [line["step"] for line in lines(tmp_path, "on") if "loss" in line] == [9, 12]
    assert losses(tmp_path, "on")[0] == uninterrupted[8]
    said = capsys.readouterr().out
    assert "changed since then: clip: 1.0 → 0.5" in said
    assert "changed since then: log_every: 1 → 4" in said


def test_two_ranks_go_on_where_one_stopped_and_only_the_first_prints(
    folder: Path, uninterrupted: list[float], tmp_path: Path
) -> None:
    shutil.copytree(folder / "whole", tmp_path / "whole")
    shutil.rmtree(tmp_path / "whole" / "checkpoints" / "step-000012")
    process = started({**options(folder, "whole"), "out": tmp_path / "whole", "log_every": 2, "eval_every": 0}, ranks=2)
    out, err = process.communicate(timeout=900)
    assert process.returncode == 0, err[-2000:]
    said = [line.split()[0] for line in out.splitlines()]
    assert said == [
        "model",
        "layers",
        "layers",
        "layers",
        "data",
        "steps",
        "flops",
        "note",
        "check",
        "resume",
        "note",
        "note",
        *["step"] * 4,
        "done",
    ]
    assert [line["step"] for line in lines(tmp_path, "whole") if "loss" in line] == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12]
    assert losses(tmp_path, "whole") == pytest.approx([*uninterrupted[:10], uninterrupted[11]], rel=1e-4)
