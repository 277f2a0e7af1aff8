"""`--against`: which options of another run become a rung, which must agree, and what is told of the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

from packer.console import to_toml
from packer.errors import UserError
from trainer.compare.against import SHARED, TAKEN, read_against
from trainer.config import RunConfig

OURS = RunConfig(shards="data/packed", model="a/b", steps=5, lr=1e-3, dtype="fp32")


def read(folder: Path, text: str, config: RunConfig = OURS) -> tuple[RunConfig, tuple[str, ...]]:
    (folder / "other.toml").write_text(text)
    return read_against(folder / "other.toml", config)


def test_options_of_training_are_taken_and_the_others_stay(tmp_path: Path) -> None:
    other, idle = read(
        tmp_path,
        'lr = 1\nwarmup = 10\nbetas = [0.8, 0.9]\nrows-per-step = 4\nschedule = "linear"\nclip = 0\ndtype = "auto"\n',
    )
    assert (other.lr, other.warmup, other.betas, other.rows_per_step) == (1.0, "10", (0.8, 0.9), 4)
    assert (other.schedule, other.clip, other.dtype, other.steps, other.seed) == ("linear", 0.0, "fp32", 5, 0)
    assert idle == ()


def test_the_config_that_a_run_leaves_is_read_and_what_has_no_part_is_named(tmp_path: Path) -> None:
    run = RunConfig(shards="data/packed", model="a/b", steps=700, lr=2e-4, out="runs/x", seed=9)
    other, idle = read(tmp_path, to_toml(run.options()))
    assert (other.lr, other.steps, other.seed, other.out) == (2e-4, 5, 0, None)
    assert {"steps", "out", "seed", "save_every", "log_every", "check"} <= set(idle)
    assert not set(idle) & {*TAKEN, *SHARED}


def test_a_folder_is_the_same_however_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "packed").mkdir()
    monkeypatch.chdir(tmp_path)
    config = RunConfig(shards="packed", model="a/b", dtype="fp32")
    other, _ = read(tmp_path, f'shards = "{tmp_path}/packed"\n', config)
    assert other == config


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ('shards = "data/other"\n', "shards is 'data/other', that of the other rungs 'data/packed'", "one shards"),
        ('model = "c/d"\n', "model is 'c/d'", "--model c/d"),
        ('init = "random"\n', "init is 'random'", "one init"),
        ("learning_rate = 1\n", "unknown key 'learning_rate'", "options of `trainer run`"),
        ("lrr = 1\n", "unknown key 'lrr'", "did you mean lr?"),
        ("[run]\nlr = 1\n", "unknown key 'run'", "options of `trainer run`"),
        ('lr = "fast"\n', "lr = 'fast'", "as `trainer run` takes it"),
        ("compile = 1\n", "compile = 1", "as `trainer run` takes it"),
        ("lr = -1\n", "--lr -1.0", "learning rate"),
        ('dtype = "fp64"\n', "dtype fp64", "--strict"),
        ("lr =\n", "not TOML", "key = value"),
    ],
)
def test_what_cannot_be_compared_is_refused(tmp_path: Path, text: str, message: str, hint: str) -> None:
    with pytest.raises(UserError) as caught:
        read(tmp_path, text)
    assert message in caught.value.message
    assert hint in caught.value.hint


def test_a_file_that_is_not_there_is_wrong_use(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="No such file"):
        read_against(tmp_path / "none.toml", OURS)
