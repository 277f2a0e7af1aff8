"""The pass before the first step: when it is made, that it is told, and that it leaves nothing behind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.trainer.shards_fixture import random_rows, write_corpus, write_model
from trainer import RunConfig, run, setup, warm_up


def losses(out: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (out / "metrics.jsonl").read_text().splitlines()]


def test_kernels_are_warmed_up_before_the_optimiser_takes_its_memory_and_before_the_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Nothing is compiled: only when the pass is made is looked at.
    monkeypatch.setattr(setup, "compile_blocks", lambda *_: None)
    monkeypatch.setattr(setup, "prove_compiler", lambda *_: None)
    write_corpus(tmp_path / "packed", rows=random_rows(7, seed=0))
    write_model(tmp_path / "tiny")
    made: list[str] = []
    accumulate, make_optimizer = warm_up.accumulate, setup.make_optimizer

    def passing(model: torch.nn.Module, *given: object, **named: object) -> object:
        made.append("pass")
        return accumulate(model, *given, **named)  # type: ignore[arg-type]

    def making(model: torch.nn.Module, **named: object) -> object:
        made.append("optimiser")
        assert all(parameter.grad is None for parameter in model.parameters())
        return make_optimizer(model, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(warm_up, "accumulate", passing)
    monkeypatch.setattr(setup, "make_optimizer", making)
    options: dict[str, object] = {
        "shards": str(tmp_path / "packed"),
        "model": str(tmp_path / "tiny"),
        "init": "random",
        "steps": 4,
        "rows_per_step": 3,
        "lr": 1e-2,
        "log_every": 1,
        "save_every": 2,
        "check": "off",
    }
    assert run(RunConfig(**options, out=str(tmp_path / "plain"))) == 0  # type: ignore[arg-type]
    assert made == ["optimiser"]
    made.clear()
    capsys.readouterr()
    warmed = RunConfig(**options, compile=True, out=str(tmp_path / "warmed"))  # type: ignore[arg-type]
    assert run(warmed) == 0
    assert made == ["pass", "optimiser"]
    said = capsys.readouterr().out
    places = [
        said.index(words) for words in ("warm-up first pass: kernels are compiled", "warm-up done in", "step 1/4")
    ]
    assert places == sorted(places)
    assert losses(tmp_path / "warmed") == losses(tmp_path / "plain")
