"""A dry run meets what a run would meet on a machine without torch, and says where the run would go on."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from packer.errors import UserError
from tests.support import ROOT
from tests.trainer.shards_fixture import Example, random_rows, write_corpus, write_model
from trainer import RunConfig, run
from trainer.dry_run import foresee
from trainer.prepare import prepare


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_corpus(tmp_path / "packed", rows=random_rows(8, seed=0))
    write_model(tmp_path / "tiny")
    return tmp_path


def config(folder: Path, **more: object) -> RunConfig:
    chosen = {
        "model": str(folder / "tiny"),
        "init": "random",
        "steps": 3,
        "rows_per_step": 2,
        "out": str(folder / "run"),
    }
    return RunConfig(shards=str(folder / "packed"), **{**chosen, **more})  # type: ignore[arg-type]


def foreseen(folder: Path, **more: object) -> dict[str, str]:
    return dict(foresee(prepare(config(folder, **more)), world=1))


def edit(folder: Path, **changes: object) -> None:
    path = folder / "tiny" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_a_new_run_is_called_one_and_nothing_is_made(folder: Path) -> None:
    said = foreseen(folder)
    assert said["out"].endswith("run: a new run")
    assert said["model"].endswith("tiny (random): qwen3_5_text")
    assert not (folder / "run").exists()


def test_it_says_where_a_run_would_go_on_and_what_has_changed(folder: Path) -> None:
    assert run(config(folder, save_every=2)) == 0
    assert "already holds all 3 steps" in foreseen(folder, save_every=2)["out"]
    shutil.rmtree(folder / "run" / "checkpoints" / "step-000003")
    said = foreseen(folder, save_every=2, lr=0.5, dtype="fp32")
    assert "step-000002: the run would go on after step 2 of 3" in said["resume"]
    assert "lr: 1e-05 → 0.5" in said["note"]
    with pytest.raises(UserError, match="saved by another run"):
        foreseen(folder, seed=1)
    with pytest.raises(UserError, match="--resume never"):
        foreseen(folder, resume="never")
    edit(folder, rms_norm_eps=1e-5)
    with pytest.raises(UserError, match="config\\.json"):
        foreseen(folder)


def test_it_meets_a_model_that_will_not_do(folder: Path) -> None:
    with pytest.raises(UserError, match="no weights"):
        foreseen(folder, init="pretrained")
    with pytest.raises(UserError, match="no such folder"):
        foreseen(folder, model="./nowhere")
    edit(folder, vocab_size=50)
    with pytest.raises(UserError, match="token id 96, past the 50 rows"):
        foreseen(folder)
    edit(folder, vocab_size=100, max_position_embeddings=32)
    with pytest.raises(UserError, match="knows 32 positions"):
        foreseen(folder)
    (folder / "tiny" / "config.json").write_text("[]")
    with pytest.raises(UserError, match="cannot be read"):
        foreseen(folder)


def test_it_meets_a_folder_that_cannot_be_written(folder: Path) -> None:
    (folder / "file").write_text("")
    with pytest.raises(UserError, match="file is not a folder"):
        foreseen(folder, out=str(folder / "file" / "run"))


def test_it_meets_a_step_without_targets(tmp_path: Path) -> None:
    write_corpus(tmp_path / "packed", rows=[[Example(ids=(5, 6), mask=(False, False))]])
    write_model(tmp_path / "tiny")
    with pytest.raises(UserError, match="step 1: none of its rows"):
        foreseen(tmp_path)


def test_it_does_all_that_without_torch(folder: Path) -> None:
    assert run(config(folder, save_every=2)) == 0
    shutil.rmtree(folder / "run" / "checkpoints" / "step-000003")
    code = (
        "import sys\nfrom trainer.cli import main\n"
        "main(['run', '--shards', 'packed', '--model', 'tiny', '--init', 'random', '--steps', '3', '--rows-per-step', '2', '--out', 'run',"
        " '--dry-run'], standalone_mode=False)\nprint('torch' in sys.modules)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=folder,
        env={"PYTHONPATH": str(ROOT)},
        check=True,
    )
    assert "# resume: run/checkpoints/step-000002: the run would go on after step 2 of 3" in result.stdout
    assert result.stdout.splitlines()[-1] == "False"
