"""Trackers: what they are told, read back from the files of the real ones, and that none of them can end a run."""

from __future__ import annotations

import json
import math
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from packer.errors import UserError
from tests.support import ROOT
from tests.trainer.shards_fixture import random_rows, write_corpus, write_model
from trainer import RunConfig, run, tracker_backends, trackers
from trainer.cli import main
from trainer.metrics import StepMetrics
from trainer.trackers import Opening, Trackers, flat, identity_of, refuse_missing

STEPS = 6


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tracked")
    write_corpus(
        path / "packed", rows=random_rows(7, seed=0), eval_rows=random_rows(3, seed=1), sources=("a.jsonl", "b.jsonl")
    )
    write_model(path / "tiny")
    return path


def options(folder: Path, out: Path, **more: object) -> dict[str, object]:
    return {
        "shards": str(folder / "packed"),
        "model": str(folder / "tiny"),
        "init": "random",
        "steps": STEPS,
        "rows_per_step": 2,
        "lr": 1e-2,
        "log_every": 1,
        "save_every": 2,
        "eval_every": 3,
        "check": "off",
        "out": str(out),
        **more,
    }


def lines(out: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def series(out: Path) -> dict[str, dict[int, float]]:
    """metrics.jsonl by name and step, as trackers name things."""
    found: dict[str, dict[int, float]] = {}
    for line in lines(out):
        step = int(str(line.pop("step")))
        for name, value in flat(line).items():  # type: ignore[arg-type]
            found.setdefault(name, {})[step] = value
    return found


def events(out: Path) -> dict[str, dict[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(out / "tensorboard"))
    read.Reload()
    assert [kind for kind, tags in read.Tags().items() if tags] == ["scalars"]  # no texts, images, graphs
    found = {tag: [(event.step, event.value) for event in read.Scalars(tag)] for tag in read.Tags()["scalars"]}
    assert all(len({step for step, _ in points}) == len(points) for points in found.values()), "a step twice"
    return {tag: dict(points) for tag, points in found.items()}


def same(one: Mapping[str, Mapping[int, float]], other: Mapping[str, Mapping[int, float]]) -> None:
    assert one.keys() == other.keys()
    for name, points in one.items():
        assert dict(points) == pytest.approx(dict(other[name]), rel=1e-6), name


def test_tensorboard_holds_the_numbers_of_metrics_jsonl_and_a_run_that_goes_on_goes_on_there(
    folder: Path, tmp_path: Path
) -> None:
    pytest.importorskip("tensorboard")
    chosen = options(folder, tmp_path / "run", tracker=("tensorboard",))
    assert run(RunConfig(**chosen)) == 0  # type: ignore[arg-type]
    whole = events(tmp_path / "run")
    same(whole, series(tmp_path / "run"))
    assert {"loss", "lr", "loss_by_source/a.jsonl", "eval_loss", "eval_loss_by_source/b.jsonl"} <= whole.keys()
    assert list(whole["loss"]) == list(range(1, STEPS + 1))
    for name in ("step-000004", "step-000006"):
        shutil.rmtree(tmp_path / "run" / "checkpoints" / name)
    # With another rate from step 3 on: what the first part logged from there is not what is shown.
    assert run(RunConfig(**{**chosen, "lr": 5e-2})) == 0  # type: ignore[arg-type]
    again = events(tmp_path / "run")
    same(again, series(tmp_path / "run"))
    assert [again["lr"][step] == whole["lr"][step] for step in (1, 2, 3, 4)] == [True, True, False, False]


def script(folder: Path, out: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """A run of its own process, as a user starts it."""
    flags = [
        part for name, value in options(folder, out).items() for part in (f"--{name.replace('_', '-')}", str(value))
    ]
    names = [part for name in env.pop("names").split() for part in ("--tracker", name)]
    return subprocess.run(
        [sys.executable, "-m", "trainer", "run", *flags, *names],
        cwd=out.parent,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT), **env},
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )


TWO_PARTS = """
import sys, time
from pathlib import Path
from trainer.tracker_backends import open_tracker
from trainer.trackers import Opening
for start in (0, 2):
    options = {"lr": 0.1, "shards": "data/packed"}
    run = open_tracker(sys.argv[1], Opening(folder=Path(sys.argv[2]), start=start, identity="abc", project=None, options=options))
    print("a line that quotes the data", flush=True)
    run.log({"loss": 1.0625 + start, "nan": float("nan")}, step=start + 1)
    run.close()
    time.sleep(1.1)  # wandb names its folders by the second
"""


def two_parts(name: str, folder: Path, **env: str) -> None:
    """A run that goes on, as the tracker `name` is told of it."""
    done = subprocess.run(
        [sys.executable, "-c", TWO_PARTS, name, str(folder)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), **env},
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr


def test_trackio_has_the_numbers_of_both_parts_in_one_run(tmp_path: Path) -> None:
    pytest.importorskip("trackio")
    (tmp_path / "first").mkdir()
    two_parts("trackio", tmp_path / "first", TRACKIO_DIR=str(tmp_path / "trackio"))
    with sqlite3.connect(tmp_path / "trackio" / "trainer.db") as database:
        found = database.execute("select run_name, step, metrics from metrics order by id").fetchall()
    read = [(name, step, json.loads(text)) for name, step, text in found]
    assert [(name, step, values["loss"]) for name, step, values in read if "loss" in values] == [
        ("first-abc", 1, 1.0625),
        ("first-abc", 3, 3.0625),
    ]


def test_wandb_is_told_numbers_and_hears_nothing_of_what_is_printed(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    two_parts("wandb", tmp_path, WANDB_MODE="offline", WANDB_SILENT="true")
    kept = sorted((tmp_path / "wandb").glob("offline-run-*-abc/run-abc.wandb"))  # one identity, two parts
    assert len(kept) == 2
    for path, loss in zip(kept, (b"1.0625", b"3.0625"), strict=True):
        written = path.read_bytes()
        assert loss in written
        assert b"data/packed" in written
        assert b"quotes the data" not in written
    assert not list((tmp_path / "wandb").rglob("output.log"))


class Fake:
    """A tracker that does as it is told at each of its three calls."""

    def __init__(self, at: str, act: Callable[[], None], seen: list[tuple[dict[str, float], int]]) -> None:
        self.at, self.act, self.seen = at, act, seen
        self._meet("init")

    def _meet(self, place: str) -> None:
        if place == self.at:
            self.act()

    def log(self, values: Mapping[str, float], *, step: int) -> None:
        self._meet("log")
        self.seen.append((dict(values), step))

    def close(self) -> None:
        self._meet("close")


def raising() -> None:
    raise ConnectionError("no route\nto host")


def leaving() -> None:
    sys.exit(3)


def hanging() -> None:
    threading.Event().wait()


@pytest.fixture
def opening(tmp_path: Path) -> Opening:
    return Opening(folder=tmp_path, start=0, identity="x", project=None, options={})


@pytest.mark.parametrize(
    ("at", "act", "taken", "why"),
    [
        ("init", raising, 0, "ConnectionError: no route to host"),
        ("log", raising, 0, "ConnectionError: no route to host"),
        ("close", raising, 5, "ConnectionError: no route to host"),
        ("log", leaving, 0, "SystemExit: 3"),
        ("init", hanging, 0, "it does not answer"),
        ("log", hanging, 0, "it does not answer"),
        ("close", hanging, 5, "it does not answer"),
    ],
)
def test_a_tracker_that_fails_or_hangs_is_told_once_with_the_lines_it_lost(
    opening: Opening, monkeypatch: pytest.MonkeyPatch, at: str, act: Callable[[], None], taken: int, why: str
) -> None:
    monkeypatch.setattr(trackers, "_CLOSE_S", 0.3 if act is hanging else 300)
    said: list[str] = []
    seen: list[tuple[dict[str, float], int]] = []
    failing = act is not hanging and at != "close"
    with Trackers(
        ("wandb",), opening, lambda label, text: said.append(f"{label} {text}"), opener=lambda *_: Fake(at, act, seen)
    ) as told:
        for step in range(5):
            told.log({"loss": 1.0}, step=step)
            while failing and told._lines[0].error is None:
                time.sleep(0.01)
        while len(seen) < taken:
            time.sleep(0.01)
    assert len(seen) == taken
    assert f"note --tracker wandb: {5 - taken} of 5 lines were not taken ({why}" in said[-1]
    early = [line for line in said if "the run goes on" in line]
    assert len(early) == failing


def test_one_that_fails_takes_no_lines_from_another(opening: Opening) -> None:
    kept: list[tuple[dict[str, float], int]] = []
    with Trackers(
        ("wandb", "trackio", "wandb"),
        opening,
        lambda *_: None,
        opener=lambda name, _: Fake("log" if name == "wandb" else "", raising, kept),
    ) as told:
        for step in range(50):
            told.log({"loss": float(step)}, step=step)
    assert kept == [({"loss": float(step)}, step) for step in range(50)]


def test_lines_that_nobody_takes_do_not_pile_up(opening: Opening, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trackers, "_WAITING", 3)
    monkeypatch.setattr(trackers, "_CLOSE_S", 0.1)
    said: list[str] = []
    with Trackers(
        ("wandb",), opening, lambda _, text: said.append(text), opener=lambda *_: Fake("init", hanging, [])
    ) as told:
        for step in range(10):
            told.log({"loss": 1.0}, step=step)
    assert "it has not taken a line for 3 lines" in said[0]
    assert "10 of 10 lines were not taken" in said[-1]


@pytest.mark.parametrize(("at", "act"), [("init", raising), ("log", hanging), ("close", leaving)])
def test_a_run_does_not_notice(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    at: str,
    act: Callable[[], None],
) -> None:
    monkeypatch.setattr(trackers, "_CLOSE_S", 0.2)
    monkeypatch.setattr(tracker_backends, "open_tracker", lambda *_: Fake(at, act, []))
    assert run(RunConfig(**options(folder, tmp_path / "plain"))) == 0  # type: ignore[arg-type]
    assert run(RunConfig(**options(folder, tmp_path / "run", tracker=("tensorboard",)))) == 0  # type: ignore[arg-type]
    assert series(tmp_path / "run")["loss"] == series(tmp_path / "plain")["loss"]
    assert capsys.readouterr().out.count("lines were not taken") == 1


@pytest.mark.full  # it waits the 10 s that a tracker is given
def test_a_process_ends_although_a_tracker_hangs(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "fakes" / "wandb").mkdir(parents=True)
    (tmp_path / "fakes" / "wandb" / "__init__.py").write_text(
        "import time\ndef init(**_): time.sleep(3600)\nSettings = dict\n"
    )
    path = os.pathsep.join([str(tmp_path / "fakes"), str(ROOT)])
    done = script(folder, tmp_path / "run", names="wandb", PYTHONPATH=path)
    assert done.returncode == 0, done.stderr
    assert f"--tracker wandb: {STEPS + 2} of {STEPS + 2} lines were not taken (it does not answer" in done.stdout


def test_what_they_are_told_is_numbers_under_the_names_of_the_metrics(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[dict[str, float], int]] = []
    monkeypatch.setattr(tracker_backends, "open_tracker", lambda *_: Fake("", hanging, seen))
    assert run(RunConfig(**options(folder, tmp_path / "run", tracker=("tensorboard",)))) == 0  # type: ignore[arg-type]
    known = {*StepMetrics.__dataclass_fields__, "eval_loss", "eval_supervised_tokens", "eval_loss_by_source"}
    for values, _ in seen:
        assert all(type(value) is float for value in values.values())
        assert {name.split("/")[0] for name in values} <= known
        assert {name.split("/")[1] for name in values if "/" in name} <= {"a.jsonl", "b.jsonl"}
    assert [step for values, step in seen if "loss" in values] == list(range(1, STEPS + 1))


def test_numbers_that_are_none_are_told_as_such() -> None:
    assert flat({"loss": math.inf, "mfu": None, "n": 3, "by": {"a": 1}}) == {"loss": math.inf, "n": 3.0, "by/a": 1.0}


def test_a_run_keeps_its_identity_until_it_begins_anew(tmp_path: Path) -> None:
    first = identity_of(tmp_path, start=0)
    assert identity_of(tmp_path, start=4) == first
    second = identity_of(tmp_path, start=0)
    assert second != first
    assert identity_of(tmp_path, start=4) == second
    (tmp_path / "trackers.json").write_text("{")
    with pytest.raises(UserError, match=r"trackers.json: not readable"):
        identity_of(tmp_path, start=4)


def test_a_package_that_is_missing_is_told_before_anything_is_loaded(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "trackio", None)  # as if it were not installed
    for dry in ([], ["--dry-run"]):
        flags = ["--shards", str(folder / "packed"), "--model", str(folder / "tiny"), "--init", "random"]
        with pytest.raises(UserError, match="--tracker trackio: the package trackio is not installed") as error:
            main(["run", *flags, "--out", str(tmp_path / "run"), "--tracker", "trackio", *dry], standalone_mode=False)
        assert error.value.hint.startswith("pip install trackio")
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_a_folder_of_that_name_is_no_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "wandb_like").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UserError, match="the package wandb_like is not installed"):
        refuse_missing(("wandb_like",))


def test_a_tracker_that_there_is_not_is_refused_with_the_nearest(folder: Path) -> None:
    with pytest.raises(UserError, match="--tracker wandbb: no such choice") as error:
        RunConfig(shards=str(folder), tracker=("wandbb",))  # type: ignore[arg-type]
    assert error.value.hint == "did you mean --tracker wandb?"
