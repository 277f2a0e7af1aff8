"""--skip-rows: the same rows keep out of every step, whatever interrupts a run, and nothing else moves."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from packer.errors import UserError
from packer.order import Order
from packer.shards import open_corpus
from tests.trainer.shards_fixture import random_rows, write_corpus, write_model
from trainer import RunConfig, run

ROWS, ROWS_A_STEP, STEPS, SKIPPED = 7, 3, 6, (2, 5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("skipped")
    write_corpus(path / "packed", rows=random_rows(ROWS, seed=0))
    write_model(path / "tiny")
    assert run(chosen(path, "whole")) == 0
    return path


def chosen(folder: Path, out: str, **more: object) -> RunConfig:
    options: dict[str, object] = {
        "shards": str(folder / "packed"),
        "model": str(folder / "tiny"),
        "init": "random",
        "steps": STEPS,
        "rows_per_step": ROWS_A_STEP,
        "lr": 1e-2,
        "log_every": 1,
        "save_every": 2,
        "check": "off",
        "skip_rows": SKIPPED,
        "out": str(folder / out),
        **more,
    }
    return RunConfig(**options)  # type: ignore[arg-type]


def lines(folder: Path, out: str) -> list[dict[str, float]]:
    kept = ("step", "epoch", "loss", "lr", "grad_norm", "supervised_tokens", "useful_tokens")
    read = map(json.loads, (folder / out / "metrics.jsonl").read_text().splitlines())
    return [{name: line[name] for name in kept} for line in read]


def resumed(folder: Path, out: str, *, after: int, **more: object) -> int:
    """As if the run had ended after its checkpoint of step `after`."""
    shutil.copytree(folder / "whole", folder / out)
    for path in (folder / out / "checkpoints").iterdir():
        if int(path.name.removeprefix("step-")) > after:
            shutil.rmtree(path)
    return run(chosen(folder, out, **more))


def trained_on(folder: Path, skipped: tuple[int, ...]) -> list[int]:
    """The targets of each step, from the order of rows and the masks alone."""
    corpus = open_corpus(folder / "packed")
    order = Order(rows=ROWS, rows_per_step=ROWS_A_STEP, positions=STEPS * ROWS_A_STEP, seed=0)
    steps = [[row for row in order.step(step).rows.tolist() if row not in skipped] for step in range(STEPS)]
    return [sum(int(np.count_nonzero(corpus[row].loss_mask)) for row in rows) for rows in steps]


def test_skipped_rows_are_in_no_step_and_the_others_keep_their_places(folder: Path) -> None:
    assert [line["supervised_tokens"] for line in lines(folder, "whole")] == trained_on(folder, SKIPPED)
    assert trained_on(folder, SKIPPED) != trained_on(folder, ())


def test_a_run_that_goes_on_keeps_skipping_them(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert resumed(folder, "same", after=2) == 0
    assert lines(folder, "same") == lines(folder, "whole")
    assert "changed since then" not in capsys.readouterr().out


def test_other_rows_to_skip_are_told_and_hold_from_there_on(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    now = (*SKIPPED, 0)
    assert resumed(folder, "other", after=4, skip_rows=now) == 0
    assert "changed since then: skip_rows: [2, 5] → [2, 5, 0]" in capsys.readouterr().out
    found = lines(folder, "other")
    assert found[:4] == lines(folder, "whole")[:4]
    assert [line["supervised_tokens"] for line in found[4:]] == trained_on(folder, now)[4:]


def test_a_step_of_which_every_row_is_skipped_is_refused_before_it_is_met(folder: Path) -> None:
    with pytest.raises(UserError, match="step 1: none of its rows has a token to train on"):
        run(chosen(folder, "none", skip_rows=tuple(range(ROWS))))
