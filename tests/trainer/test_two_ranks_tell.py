"""What two ranks tell together is what one tells: losses by source, the router loss, trackers, and a step taken apart."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import ROOT
from tests.trainer.shards_fixture import VOCAB, random_rows, write_corpus
from tests.trainer.test_routers import MODELS
from tests.trainer.tiny_models import write_config
from trainer import RunConfig, run
from trainer.blame.command import blame
from trainer.blame.report import json_of


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ranks")
    write_corpus(
        path / "packed", rows=random_rows(7, seed=0), eval_rows=random_rows(3, seed=1), sources=("a.jsonl", "b.jsonl")
    )
    write_config(path / "moe", {**MODELS["qwen3_moe"], "vocab_size": VOCAB + 3})
    return path


def options(folder: Path, out: str) -> dict[str, object]:
    return {
        "shards": str(folder / "packed"),
        "model": str(folder / "moe"),
        "init": "random",
        "steps": 3,
        "rows_per_step": 3,  # two ranks make two passes, one of them filling
        "lr": 1e-2,
        "router_aux_loss": 0.1,
        "log_every": 2,
        "save_every": 1,
        "check": "off",
        "out": str(folder / out),
    }


def torchrun(*arguments: str) -> str:
    """`trainer …` by two ranks; what it says on standard output."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "trainer"]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [*launcher, *arguments], cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=900
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def lines(folder: Path, out: str) -> list[dict[str, object]]:
    kept = ("step", "loss", "objective", "grad_norm", "router_aux_loss", "eval_loss")
    read = map(json.loads, (folder / out / "metrics.jsonl").read_text().splitlines())
    return [{name: value for name, value in line.items() if name in kept or "source" in name} for line in read]


def test_two_ranks_tell_what_one_tells(folder: Path) -> None:
    pytest.importorskip("tensorboard")
    assert run(RunConfig(**options(folder, "one"))) == 0  # type: ignore[arg-type]
    chosen = options(folder, "two")
    flags = [part for name, value in chosen.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    torchrun("run", *flags, "--tracker", "tensorboard")
    one, two = lines(folder, "one"), lines(folder, "two")
    assert len(one) == len(two) == 4
    for ours, theirs in zip(two, one, strict=True):
        assert ours.keys() == theirs.keys()
        for name, value in theirs.items():
            assert ours[name] == pytest.approx(value, rel=1e-4), name
    assert len(list((folder / "two" / "tensorboard").iterdir())) == 1  # of rank 0 alone


@pytest.mark.full
def test_two_ranks_take_a_step_apart_as_one_does(folder: Path) -> None:
    assert run(RunConfig(**options(folder, "apart"))) == 0  # type: ignore[arg-type]
    alone = json.loads(json_of(blame(folder / "apart", step=3, gradients=True)))
    together = json.loads(torchrun("blame", str(folder / "apart"), "--step", "3", "--gradients", "--json"))
    for ours, theirs in zip(together["examples"], alone["examples"], strict=True):
        for name in ("loss", "loss_sum"):
            assert ours.pop(name) == pytest.approx(theirs.pop(name), rel=1e-5)
        assert ours == theirs
    norms = [{each["row"]: each["norm"] for each in found["gradients"]} for found in (together, alone)]
    assert norms[0] == pytest.approx(norms[1], rel=1e-4)
    assert together["command"] == alone["command"]
    assert together["loss"] == pytest.approx(lines(folder, "apart")[2]["loss"], rel=1e-4)
