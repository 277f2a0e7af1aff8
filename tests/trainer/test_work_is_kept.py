"""What ends a run, or might, and what is left of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from packer.errors import UserError
from tests.support import ROOT
from tests.trainer.shards_fixture import Example, random_rows, write_corpus, write_model
from tests.trainer.test_run import await_path, losses, options, started
from trainer import RunConfig, run
from trainer import evaluate as evaluate_module
from trainer import loader as loader_module
from trainer.metrics import MetricsFile
from trainer.run_folder import held


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("kept")
    write_corpus(path / "packed", rows=random_rows(21, seed=0))
    write_model(path / "tiny")
    return path


@pytest.fixture(scope="module")
def whole(folder: Path) -> list[float]:
    assert run(RunConfig(**options(folder, "whole"))) == 0  # type: ignore[arg-type]
    return losses(folder, "whole")


def saved(folder: Path, out: str) -> list[str]:
    return sorted(path.name for path in (folder / out / "checkpoints").iterdir())


def test_a_reader_that_goes_away_does_not_end_a_run(folder: Path, whole: list[float]) -> None:
    process = started(options(folder, "unread"))
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    process.stdout = None
    _, err = process.communicate(timeout=900)
    assert process.returncode == 0, err
    assert err.count("standard output is lost") == 1
    assert len(err.splitlines()) == 1, err
    assert losses(folder, "unread") == whole


def test_a_log_on_a_full_disk_does_not_end_a_run(folder: Path, whole: list[float]) -> None:
    chosen = options(folder, "fulllog")
    flags = [part for name, value in chosen.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    with open("/dev/full", "w") as log:
        result = subprocess.run(
            [sys.executable, "-m", "trainer", "run", *flags],
            cwd=ROOT,
            stdout=log,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=900,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
    assert (result.returncode, result.stderr.count("note: ")) == (0, 1), result.stderr
    assert losses(folder, "fulllog") == whole


def test_a_row_found_broken_on_the_way_leaves_a_checkpoint_of_the_steps_before(
    folder: Path, whole: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    original, made = loader_module.read_pass, iter(range(10**6))

    def breaking(*given: object, **options: object) -> object:
        if next(made) == 4 * 5 + 1:  # in the sixth step
            raise UserError("shard-00000.arrow, row 3: broken", "mend it")
        return original(*given, **options)  # type: ignore[arg-type]

    chosen = RunConfig(**options(folder, "broken", save_every=0))  # type: ignore[arg-type]
    with monkeypatch.context() as patch:
        patch.setattr(loader_module, "read_pass", breaking)
        with pytest.raises(UserError, match="row 3: broken"):
            run(chosen)
    assert saved(folder, "broken") == ["step-000005"]
    assert run(chosen) == 0
    assert losses(folder, "broken") == whole


def test_metrics_that_cannot_be_written_end_a_run_in_two_lines_and_a_checkpoint(
    folder: Path, whole: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    original = MetricsFile.add_step

    def filling(self: MetricsFile, metrics: object) -> None:
        if metrics.step == 3:  # type: ignore[attr-defined]
            self._path = Path("/dev/full")
        original(self, metrics)  # type: ignore[arg-type]

    chosen = RunConfig(**options(folder, "full"))  # type: ignore[arg-type]
    with monkeypatch.context() as patch:
        patch.setattr(MetricsFile, "add_step", filling)
        with pytest.raises(UserError, match=r"cannot be written \(No space left"):
            run(chosen)
    assert saved(folder, "full") == ["step-000003"]
    assert run(chosen) == 0
    assert losses(folder, "full") == [*whole[:2], *whole[3:]]  # the one line that had no room


def test_a_closed_terminal_saves_first(folder: Path) -> None:
    before = signal.signal(
        signal.SIGHUP, signal.SIG_DFL
    )  # the tests themselves may run under nohup, which is inherited
    try:
        process = started(options(folder, "hangup", save_every=0, steps=4000))
    finally:
        signal.signal(signal.SIGHUP, before)
    await_path(folder / "hangup" / "metrics.jsonl", process)
    while not losses(folder, "hangup"):
        time.sleep(0.01)
    process.send_signal(signal.SIGHUP)
    out, err = process.communicate(timeout=900)
    assert process.returncode == 129, err
    assert "stopped SIGHUP after step" in out
    assert len(saved(folder, "hangup")) == 1


@pytest.mark.parametrize(
    ("eval_every", "saved_at", "told"),
    [(3, "step-000003", "stopped SIGTERM after step 3 of 12"), (0, "step-000012", "before the last evaluation")],
    ids=["between", "last"],
)
def test_a_signal_does_not_wait_for_the_end_of_an_evaluation(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    eval_every: int,
    saved_at: str,
    told: str,
) -> None:
    write_corpus(tmp_path / "held out", rows=random_rows(40, seed=5))
    original, read = evaluate_module.read_pass, []

    def interrupting(*given: object, **more: object) -> object:
        read.append(1)
        if len(read) == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return original(*given, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(evaluate_module, "read_pass", interrupting)
    more = {"eval_every": eval_every or None, "eval_shards": str(tmp_path / "held out"), "save_every": 0}
    assert run(RunConfig(**options(folder, "evaluating", **more) | {"out": str(tmp_path / "run")})) == 143  # type: ignore[arg-type]
    assert len(read) == 2  # of 40
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == [saved_at]
    assert told in capsys.readouterr().out


def test_nohup_is_respected() -> None:
    from trainer.interrupts import Interrupts

    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupts() as interrupts:
            os.kill(os.getpid(), signal.SIGHUP)
            assert interrupts.signal == 0
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_folder_is_written_by_one_run_at_a_time(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with held(out), pytest.raises(UserError, match="another run is writing here"):
        run(RunConfig(**{**options(folder, "x"), "out": str(out)}))  # type: ignore[arg-type]
    assert run(RunConfig(**{**options(folder, "x"), "out": str(out), "steps": 1})) == 0  # type: ignore[arg-type]


def test_a_step_without_targets_is_met_before_the_first_step(tmp_path: Path) -> None:
    silent = Example(ids=(5, 6, 7), mask=(False, False, False))
    write_corpus(tmp_path / "packed", rows=[*random_rows(11, seed=0), [silent]])
    write_model(tmp_path / "tiny")
    with pytest.raises(UserError, match=r"step \d+: none of its rows has a token to train on \(rows 11\)"):
        run(RunConfig(**options(tmp_path, "none", rows_per_step=1)))  # type: ignore[arg-type]
    assert not (tmp_path / "none" / "metrics.jsonl").exists()
    with pytest.raises(UserError, match="none of its rows"):
        run(RunConfig(**options(tmp_path, "none", rows_per_step=1, skip_rows=(3,), steps=100)))  # type: ignore[arg-type]
    assert run(RunConfig(**options(tmp_path, "none", rows_per_step=2, steps=1))) == 0  # type: ignore[arg-type]


def test_lines_of_metrics_that_are_not_ours_are_cut_and_counted(tmp_path: Path) -> None:
    good = [json.dumps({"step": step, "loss": 2.0}) for step in (1, 2)]
    bad = ["", "{", "[]", "17", '{"step": "1"}', '{"loss": 1.0}', '{"step": 1, "loss": "x"}', "\ufffd\u2028"]
    (tmp_path / "metrics.jsonl").write_text("\n".join([good[0], *bad, good[1]]) + "\n")
    file = MetricsFile(tmp_path, after=9)
    assert file.unreadable == len(bad)
    assert (tmp_path / "metrics.jsonl").read_text().splitlines() == good
    assert file.first_loss() == 2.0


def test_dropout_is_said_at_start(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = {"model_type": "gpt2", "vocab_size": 112, "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 64}
    config |= {"resid_pdrop": 0.1, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 1, "eos_token_id": 1}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert run(RunConfig(**options(folder, "drop", steps=1, model=str(tmp_path)))) == 0  # type: ignore[arg-type]
    assert "dropout is on: 2 × Dropout (p 0.1)" in capsys.readouterr().out


def test_a_gradient_that_is_not_finite_stops_the_run_with_step_and_rows(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trainer import step as step_module

    original, made = step_module.loss_of, iter(range(10**6))
    # The sixth pass, so in the second step of four.
    monkeypatch.setattr(
        step_module, "loss_of", lambda model, batch: original(model, batch) * (float("nan") if next(made) == 5 else 1.0)
    )
    with pytest.raises(
        UserError,
        match=r"step 2: the gradient is not finite; its update was not made \(1 skipped.*Rows: \d+, \d+, \d+, \d+\n",
    ):
        run(RunConfig(**{**options(folder, "x"), "out": str(tmp_path / "nan"), "log_every": 4}))  # type: ignore[arg-type]
    # What was learnt is kept, and that one update is missing is kept with it.
    saved = tmp_path / "nan" / "checkpoints" / "step-000004" / "run.json"
    assert json.loads(saved.read_text())["skipped"] == 1


def test_a_run_told_to_go_on_leaves_bad_updates_out_counts_them_and_names_the_first(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from trainer import step as step_module
    from trainer.prepare import prepare

    original, made = step_module.loss_of, iter(range(10**6))
    # Four passes a step: one of the second step, all of the fifth.
    bad = {5, *range(16, 20)}
    monkeypatch.setattr(
        step_module,
        "loss_of",
        lambda model, batch: original(model, batch) * (float("nan") if next(made) in bad else 1.0),
    )
    chosen = RunConfig(**{**options(folder, "x", non_finite="skip", log_every=2), "out": str(tmp_path / "on")})  # type: ignore[arg-type]
    assert run(chosen) == 0
    text = (tmp_path / "on" / "metrics.jsonl").read_text()
    assert "NaN" not in text  # no JSON
    lines = [json.loads(line) for line in text.splitlines()]
    assert [(line["step"], line["skipped"]) for line in lines] == [
        (1, 0), (2, 1), (4, 1), (6, 2), (8, 2), (10, 2), (12, 2)
    ]  # fmt: skip
    assert [line["loss"] is None for line in lines] == [False, True, *[False] * 5]
    assert lines[-1]["loss"] < lines[0]["loss"]
    said = capsys.readouterr().out
    rows = ", ".join(str(row) for row in prepare(chosen).order.step(1).rows)
    assert f"because their gradient was not finite: 1; the first is step 2, rows {rows}" in said
    assert said.count("updates not made") == 2  # told when there is another, not at every line
    records = {
        path.name: json.loads((path / "run.json").read_text()) for path in (tmp_path / "on/checkpoints").iterdir()
    }
    assert {name: record["skipped"] for name, record in records.items()} == {
        "step-000004": 1,
        "step-000008": 2,
        "step-000012": 2,
    }
    # Readers of the file are not thrown by a line without a loss.
    assert MetricsFile(tmp_path / "on", after=12).unreadable == 0


def test_a_run_stopped_by_its_first_bad_step_stands_before_it(
    folder: Path, whole: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trainer import step as step_module

    original, made = step_module.loss_of, iter(range(10**6))
    monkeypatch.setattr(
        step_module,
        "loss_of",
        lambda model, batch: original(model, batch) * (float("nan") if next(made) in range(4, 8) else 1.0),
    )
    chosen = RunConfig(**{**options(folder, "x"), "out": str(tmp_path / "nan")})  # type: ignore[arg-type]
    with pytest.raises(UserError, match="step 2: the gradient is not finite"):
        run(chosen)
    assert [path.name for path in (tmp_path / "nan" / "checkpoints").iterdir()] == ["step-000001"]
    assert run(chosen) == 0
    assert losses(tmp_path, "nan") == whole


def test_a_checkpoint_that_found_no_room_is_not_tried_twice(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from trainer import checkpoint

    tried = []

    def full(*_: object, **__: object) -> Path:
        tried.append(1)
        raise UserError("no space left", "free space")

    monkeypatch.setattr(checkpoint, "write", full)
    with pytest.raises(UserError, match="no space left"):
        run(RunConfig(**options(folder, "noroom")))  # type: ignore[arg-type]
    assert len(tried) == 1
    assert "steps after 0 are not saved" in capsys.readouterr().out
