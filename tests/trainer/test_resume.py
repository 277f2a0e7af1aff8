"""A run that is killed at any step and goes on, on any number of ranks, trains on the same rows and has the same losses as one that was not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support import ROOT
from tests.trainer.kill_script import EPOCHS, ROWS, ROWS_PER_STEP, STEPS
from tests.trainer.shards_fixture import random_rows, write_corpus, write_model
from trainer import RunConfig
from trainer.prepare import prepare


@dataclass(frozen=True)
class Runs:
    folder: Path
    statuses: dict[str, list[int]]

    def lines(self, name: str) -> list[dict[str, float]]:
        return [json.loads(line) for line in (self.folder / name / "metrics.jsonl").read_text().splitlines()]

    def losses(self, name: str) -> list[float]:
        return [line["loss"] for line in self.lines(name) if "loss" in line]

    def rows(self, name: str) -> dict[tuple[int, int], list[int]]:
        """(attempt, step) → rows that some rank computed with weight 1, sorted."""
        found = defaultdict(list)
        for text in Path(f"{self.folder / name}.trace").read_text().splitlines():
            line = json.loads(text)
            found[line["attempt"], line["step"]] += [row for row, weight in line["rows"] if weight]
        return {key: sorted(rows) for key, rows in found.items()}


def made(folder: Path, size: str) -> Runs:
    write_corpus(folder / "packed", rows=random_rows(ROWS, seed=0), eval_rows=random_rows(5, seed=1))
    write_model(folder / "tiny")
    result = subprocess.run(
        [sys.executable, "-m", "tests.trainer.kill_script", str(folder), size],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return Runs(folder, json.loads((folder / "results.json").read_text()))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return made(tmp_path_factory.mktemp("resume"), "quick")


def planned(folder: Path, rows_per_step: int) -> list[list[int]]:
    order = prepare(
        RunConfig(shards=str(folder / "packed"), model="none", epochs=EPOCHS, rows_per_step=rows_per_step)
    ).order
    steps = [order.step(step) for step in range(order.steps)]
    return [sorted(int(row) for row, w in zip(s.rows, s.weights, strict=True) if w) for s in steps]


def check_resumed(runs: Runs) -> int:
    expected, losses = planned(runs.folder, ROWS_PER_STEP), runs.losses("whole")
    assert sorted(row for step in expected for row in step) == sorted(list(range(ROWS)) * EPOCHS)
    assert len(losses) == STEPS
    checked = 0
    for name, statuses in runs.statuses.items():
        if name.startswith("killed") and "-on-" not in name:
            assert set(statuses) == {-9}
        if not name.startswith("killed") or "-on-" not in name:
            continue
        assert set(statuses) == {0}, name
        rows = runs.rows(name)
        assert {step for attempt, step in rows if attempt == 1} >= set(range(int(name.split("-")[1]), STEPS))
        for (_, step), computed in rows.items():
            assert computed == expected[step], (name, step)
        assert runs.losses(name) == pytest.approx(losses, rel=1e-9, abs=0), name
        assert [line["lr"] for line in runs.lines(name) if "lr" in line] == [
            line["lr"] for line in runs.lines("whole") if "lr" in line
        ]
        checked += 1
    return checked


def test_killed_at_a_step_and_resumed_on_other_ranks_nothing_differs(runs: Runs) -> None:
    assert check_resumed(runs) == 3


def check_whole(runs: Runs, world: int) -> None:
    name = f"whole-{world}"
    assert runs.statuses[name] == [0] * world
    assert runs.losses(name) == pytest.approx(runs.losses("whole"), rel=1e-9, abs=0)
    assert {step: rows for (_, step), rows in runs.rows(name).items()} == dict(
        enumerate(planned(runs.folder, ROWS_PER_STEP))
    )
    for ours, alone in zip(runs.lines(name), runs.lines("whole"), strict=True):
        for key in ("eval_loss", "grad_norm", "useful_tokens", "supervised_tokens", "epoch"):
            assert ours.get(key, 0.0) == pytest.approx(alone.get(key, 0.0), rel=1e-6 if key == "grad_norm" else 1e-9)
    assert sum("eval_loss" in line for line in runs.lines(name)) == 1


def test_two_ranks_change_neither_rows_nor_losses_nor_norms_nor_the_eval_loss(runs: Runs) -> None:
    check_whole(runs, 2)


def test_three_ranks_share_five_rows(runs: Runs) -> None:
    expected = dict(enumerate(planned(runs.folder, 5)))
    for world in (1, 3):
        assert runs.statuses[f"uneven-{world}"] == [0] * world
        assert {step: rows for (_, step), rows in runs.rows(f"uneven-{world}").items()} == expected
    assert runs.losses("uneven-3") == pytest.approx(runs.losses("uneven-1"), rel=1e-9, abs=0)


def check_bit_for_bit(runs: Runs) -> int:
    names = [name for name in runs.statuses if name.startswith("fp32") and name.endswith("killed")]
    for name in names:
        assert set(runs.statuses[name]) == {0}
        plain = name.removesuffix("-killed")
        assert runs.losses(name) == runs.losses(plain), name
        assert max(step for attempt, step in runs.rows(name) if attempt == 0) == 2
    return len(names)


def test_on_the_same_number_of_ranks_fp32_losses_are_equal_bit_for_bit(runs: Runs) -> None:
    assert check_bit_for_bit(runs) == 1


def test_compiled_and_sharded_blocks_train_alike_and_are_compiled_once(runs: Runs) -> None:
    assert runs.statuses["compiled-2"] == [0, 0]
    assert runs.losses("compiled-2") == pytest.approx(runs.losses("fp32-2"), rel=1e-4)
    assert {line["recompiles"] for line in runs.lines("compiled-2") if "loss" in line} == {0}


@pytest.mark.full
def test_killed_at_every_step_and_resumed_on_one_two_and_four(tmp_path: Path) -> None:
    runs = made(tmp_path, "full")
    assert check_resumed(runs) == 3 * (STEPS - 1)
    assert check_bit_for_bit(runs) == 3
    for world in (2, 4):
        check_whole(runs, world)
