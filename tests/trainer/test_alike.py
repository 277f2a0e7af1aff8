"""Ranks that do not have the same before them are told so before a step is made."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from packer.errors import UserError
from tests.support import ROOT
from tests.trainer.shards_fixture import random_rows, write_corpus, write_model
from tests.trainer.test_run import options
from trainer import alike
from trainer.alike import refuse_difference
from trainer.ranks import Ranks

SECOND = Ranks(rank=1, world=2, local_rank=0, local_world=1, device=torch.device("cpu"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("alike")
    write_corpus(path / "packed", rows=random_rows(5, seed=0))
    write_corpus(path / "stale", rows=random_rows(6, seed=0))
    write_model(path / "tiny")
    return path


def two_ranks(folder: Path, second: str, **more: object) -> subprocess.CompletedProcess[str]:
    """A run of two ranks, of which the second has a variable of its own; all other options come from the environment too."""
    chosen = {**options(folder, "run", steps=1, check="off"), **more}
    variables = {f"TRAINER_RUN_{name.upper()}": str(value) for name, value in chosen.items()}
    each = f'if [ "$RANK" = 1 ]; then export {second}; fi; exec {sys.executable} -m trainer run'
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--no-python"]
    return subprocess.run(
        [sys.executable, *launcher, "bash", "-c", each],
        cwd=ROOT,
        env={**os.environ, **variables, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )


def test_a_rank_with_other_shards_under_the_same_options_ends_the_run(folder: Path) -> None:
    done = two_ranks(folder, f"TRAINER_RUN_SHARDS={folder / 'stale'}")
    assert done.returncode != 0
    told = [line for line in done.stderr.splitlines() if line.startswith(("error: ", "hint: "))]
    assert told[0].startswith("error: ranks do not have the same --shards (their digest): ")
    assert "on rank 0" in told[0]
    assert "on rank 1" in told[0]
    assert len(told) == 2
    assert "step 1/1" not in done.stdout


@pytest.mark.full
def test_a_rank_that_cannot_see_the_runs_folder_ends_the_run(folder: Path, tmp_path: Path) -> None:
    done = two_ranks(folder, f"TRAINER_RUN_OUT={tmp_path / 'elsewhere'}", out=str(tmp_path / "run"))
    assert done.returncode != 0
    assert f"error: {tmp_path / 'elsewhere'}: rank 1" in done.stderr
    assert "does not see what rank 0 writes there" in done.stderr
    assert list((tmp_path / "run").iterdir()) == []


def test_the_first_difference_is_named_with_rank_and_machine() -> None:
    same = {"host": "a", "--lr": "1e-05", "--seed": "0"}
    refuse_difference([same, {**same, "host": "b"}])
    with pytest.raises(UserError) as caught:
        refuse_difference([same, same, {**same, "host": "b", "--seed": "1"}])
    assert caught.value.message == "ranks do not have the same --seed: 0 on rank 0 (a), 1 on rank 2 (b)"


@pytest.mark.parametrize("there", [None, "another run's"])
def test_only_the_very_file_that_rank_0_wrote_shows_that_a_folder_is_shared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: str | None
) -> None:
    monkeypatch.setattr(alike, "_SHOWN_WITHIN_S", 0.0)
    path = tmp_path / "token"
    if there is not None:
        path.write_text(there)
    with pytest.raises(UserError, match=r"rank 1 .* does not see what rank 0 writes there"):
        alike._see(path, "this run's", SECOND)
    path.write_text("this run's")
    alike._see(path, "this run's", SECOND)
