"""Checkpoints written behind the run hold what the run was when they were begun, and what goes wrong with them is heard."""

from __future__ import annotations

import dataclasses
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from packer.errors import UserError
from tests.trainer.shards_fixture import random_rows, write_corpus, write_model
from tests.trainer.test_checkpoint import NOTE, made, trained
from trainer import RunConfig, checkpoint, run
from trainer.ranks import Ranks, start_ranks
from trainer.record import Record
from trainer.saver import Saver


@pytest.fixture
def ranks() -> Iterator[Ranks]:
    with start_ranks() as found:
        yield found


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Nothing is written until it is set."""
    original, opened = checkpoint.save_state, threading.Event()

    def waiting(*args: object, **options: object) -> object:
        assert opened.wait(300)
        return original(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(checkpoint, "save_state", waiting)
    return opened


def test_what_is_written_is_what_was_when_it_was_begun(tmp_path: Path, ranks: Ranks, gate: threading.Event) -> None:
    model, optimizer = trained()
    before = {name: tensor.clone() for name, tensor in checkpoint.state_of(model, optimizer).items()}
    saver = Saver(tmp_path / "run", ranks, keep=0)
    saver.begin(NOTE, model, optimizer)
    assert saver.poll() is None
    assert not list(tmp_path.glob("run/checkpoints/step-*"))
    with torch.no_grad():
        for tensor in checkpoint.state_of(model, optimizer).values():
            tensor.add_(1)  # the run goes on
    gate.set()
    saved = saver.wait()
    assert saved is not None
    assert 0 <= saved.held_s < saved.seconds
    other, its_optimizer = made(seed=1)
    checkpoint.load_weights(saved.path, other, ranks=ranks)
    checkpoint.load_optimizer(saved.path, other, its_optimizer, ranks=ranks)
    assert all(torch.equal(tensor, before[name]) for name, tensor in checkpoint.state_of(other, its_optimizer).items())


def test_a_save_is_heard_of_once(tmp_path: Path, ranks: Ranks) -> None:
    saver = Saver(tmp_path / "run", ranks, keep=0)
    assert saver.wait() is None
    saver.begin(NOTE, *trained())
    saved = saver.wait()
    assert saved is not None
    assert (saved.step, saved.path) == (3, tmp_path / "run" / "checkpoints" / "step-000003")
    assert (saver.poll(), saver.wait()) == (None, None)


def test_no_save_is_begun_over_one_that_was_not_heard_of(tmp_path: Path, ranks: Ranks, gate: threading.Event) -> None:
    saver = Saver(tmp_path / "run", ranks, keep=0)
    saver.begin(NOTE, *trained())
    with pytest.raises(RuntimeError, match="another is not yet heard of"):
        saver.begin(NOTE, *trained())
    gate.set()
    saver.wait()


@pytest.mark.parametrize("error", [UserError("no space left", "free space"), ZeroDivisionError("a bug")])
def test_what_ends_a_save_is_raised_in_the_run_and_the_next_save_is_not_harmed(
    tmp_path: Path, ranks: Ranks, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def failing(*_: object, **__: object) -> None:
        raise error

    saver = Saver(tmp_path / "run", ranks, keep=0)
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "write", failing)
        saver.begin(NOTE, *trained())
        with pytest.raises(type(error)):
            saver.wait()
    saver.begin(NOTE, *trained())
    assert saver.wait() is not None


def a_run(folder: Path, **more: object) -> RunConfig:
    write_corpus(folder / "packed", rows=random_rows(5, seed=0))
    options = {"shards": str(folder / "packed"), "model": str(write_model(folder / "tiny")), "init": "random"}
    options |= {"steps": 6, "rows_per_step": 2, "log_every": 1, "save_every": 2, "out": str(folder / "run"), **more}
    return RunConfig(**options)  # type: ignore[arg-type]


def test_the_run_goes_on_while_a_checkpoint_is_written_and_waits_for_it_before_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from trainer import loop

    original, steps, written = checkpoint.write, [0], []
    train = loop.train_step

    def slow(folder: Path, note: Record, state: object, **options: object) -> object:
        until = time.monotonic() + 300
        while steps[0] <= note.step < 6 and time.monotonic() < until:
            time.sleep(0.01)
        written.append((note.step, steps[0]))
        return original(folder, note, state, **options)  # type: ignore[arg-type]

    def counting(*args: object, **options: object) -> object:
        steps[0] += 1
        return train(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(checkpoint, "write", slow)
    monkeypatch.setattr(loop, "train_step", counting)
    assert run(a_run(tmp_path, keep=1)) == 0
    # A write went on only once the run had made another step; the last had none to wait for.
    assert [begun for begun, _ in written] == [2, 4, 6]
    assert all(steps > begun for begun, steps in written[:-1])
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-000006"]
    said = capsys.readouterr().out
    assert said.count("the run was held for") == 3
    assert said.count("(--keep 1)") == 2


def test_a_save_that_fails_behind_the_run_ends_it_between_two_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing(*_: object, **__: object) -> None:
        raise UserError("no space left on the disk", "free space there")

    monkeypatch.setattr(checkpoint, "write", failing)
    with pytest.raises(UserError, match="no space left on the disk"):
        run(a_run(tmp_path))
    assert "steps after 0 are not saved" in capsys.readouterr().out
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) <= 4  # not the whole run


def test_what_cannot_be_pruned_is_said_in_two_lines(
    tmp_path: Path, ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = shutil.rmtree

    def refusing(path: Path, *, ignore_errors: bool = False) -> None:
        if "step-000003" in path.name:
            raise PermissionError(13, "Permission denied")
        original(path, ignore_errors=ignore_errors)

    saver = Saver(tmp_path / "run", ranks, keep=1)
    for step in (3, 4):
        saver.begin(dataclasses.replace(NOTE, step=step), *trained())
        if step == 3:
            saver.wait()

            monkeypatch.setattr(shutil, "rmtree", refusing)
    with pytest.raises(UserError, match=r"step-000003: cannot be removed \(Permission denied\)"):
        saver.wait()
