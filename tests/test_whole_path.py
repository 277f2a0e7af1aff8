"""From a file of conversations to a trained model, by the two commands alone, on the sample and on real data."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoTokenizer

import packer
from tests.support import SAMPLE, TINY, run_module


def losses(run: Path) -> list[float]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if "loss" in line]


def build(tmp_path: Path, *arguments: str | Path) -> None:
    built = run_module("packer", ["build", *arguments, "-o", tmp_path / "packed"], cwd=tmp_path)
    assert built.returncode == 0, built.stderr


def train(tmp_path: Path, *arguments: str | Path) -> list[float]:
    command = [
        "run",
        "--shards",
        tmp_path / "packed",
        "--init",
        "random",
        "--log-every",
        "1",
        "--out",
        tmp_path / "run",
    ]
    trained = run_module("trainer", [*command, *arguments], cwd=tmp_path, timeout=900)
    assert trained.returncode == 0, trained.stdout + trained.stderr
    return losses(tmp_path / "run")


def test_the_sample_becomes_a_model_that_has_learnt(tmp_path: Path) -> None:
    build(tmp_path, SAMPLE, "--tokenizer", TINY, "--capacity", "4096")
    found = train(tmp_path, "--steps", "12", "--rows-per-step", "1", "--lr", "3e-3")
    assert len(found) == 12
    # A uniform guess over 4,096 ids costs ln 4096 = 8.32.
    assert found[0] == pytest.approx(np.log(4096), abs=0.3)
    assert np.mean(found[-3:]) < found[0] - 1.0


# A step with Qwen's vocabulary takes seconds on a CPU: a few show that the loss falls.
@pytest.mark.parametrize(
    ("capacity", "steps", "fall"), [(2048, 6, 0.5), pytest.param(8192, 20, 2.0, marks=pytest.mark.full)]
)
def test_real_rows_become_shards_and_train_the_tiny_hybrid(
    tmp_path: Path, real_rows: Path, qwen3: Path, capacity: int, steps: int, fall: float
) -> None:
    build(tmp_path, real_rows, "--tokenizer", qwen3, "--capacity", str(capacity))
    corpus = packer.open(tmp_path / "packed")
    tokenizer = AutoTokenizer.from_pretrained(qwen3)
    expected = {}
    for number, line in enumerate(real_rows.read_text(encoding="utf-8").splitlines()):
        messages = json.loads(line)["messages"]
        expected[number] = tokenizer.apply_chat_template(messages, tokenize=True, return_dict=True)["input_ids"]
    seen = {}
    for row in corpus:
        for place in range(row.num_examples):
            start, end = row.cu_seqlens[place : place + 2]
            seen[int(row.example_ids[place])] = row.input_ids[start:end].tolist()
    assert seen == expected, "every token of every row, and no other"
    assert corpus.manifest.ledger.tokens == {
        "encoded": sum(map(len, expected.values())),
        "in_rows": sum(map(len, expected.values())),
    }

    model = tmp_path / "model"
    model.mkdir()
    settings = json.loads((TINY / "config.json").read_text())
    settings.update(
        vocab_size=corpus.manifest.vocab_size,
        pad_token_id=corpus.manifest.pad_id,
        eos_token_id=corpus.manifest.stop_ids[0],
    )
    (model / "config.json").write_text(json.dumps(settings))
    found = train(tmp_path, "--model", model, "--steps", str(steps), "--rows-per-step", "1", "--lr", "3e-3")
    assert len(found) == steps
    assert found[0] == pytest.approx(np.log(corpus.manifest.vocab_size), abs=0.5)
    assert np.mean(found[-steps // 4 :]) < found[0] - fall
