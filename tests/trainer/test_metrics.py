"""Rates and utilisation against a step reckoned by hand; the file after a kill."""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from packer.order import Deal
from tests.trainer.shards_fixture import CAPACITY, MAX_SEGMENTS, random_rows, write_corpus
from trainer.batch import Shape
from trainer.flops import Attention, Flops
from trainer.loader import StepPlan, StepWork, read_pass
from trainer.metrics import MetricsFile, Window, duration, step_line
from trainer.ranks import Ranks
from trainer.step import StepResult

ALONE = Ranks(rank=0, world=1, local_rank=0, local_world=1, device=torch.device("cpu"))


def one_step(folder: Path) -> StepWork:
    corpus = write_corpus(folder / "packed", rows=random_rows(2, seed=0))
    shape = Shape(rows=2, capacity=CAPACITY, max_segments=MAX_SEGMENTS, max_segment_len=CAPACITY)
    rows, weights = np.arange(2), np.ones(2, bool)
    batch = read_pass(corpus, rows, weights, shape=shape, pin=False)
    deal = Deal(rows=rows.reshape(1, 1, 2), weights=weights.reshape(1, 1, 2))
    return StepWork(plan=StepPlan(step=6, rows=rows, deal=deal, supervised=batch.count), passes=(batch,))


def test_a_line_holds_rates_of_the_window_and_sums_of_the_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    work = one_step(tmp_path)
    attention = (Attention(window=None, square=2.0), Attention(window=5, square=7.0))
    window = Window(flops=Flops(token=10.0, supervised=3.0, attention=attention), peak=1000.0)
    result = StepResult(
        loss_sum=torch.tensor(50.0),
        objective_sum=torch.tensor(50.0),
        grad_norm=torch.tensor(2.0),
        finite=torch.tensor(True),
    )
    for waited in (0.5, 1.5):
        window.add(work, waited_s=waited)
    now[0] += 14.0
    window.skip(4.0)  # a checkpoint
    metrics = window.close(work, result, epoch=0.5, lr=1e-3, skipped=0, ranks=ALONE)
    useful, supervised = work.passes[0].useful_tokens, work.plan.supervised
    rows = [[len(example.ids) for example in row] for row in random_rows(2, seed=0)]
    tails = [[*row, CAPACITY - sum(row)] if sum(row) < CAPACITY else row for row in rows]

    def attending(segments: list[list[int]]) -> float:
        lengths = [length for row in segments for length in row]
        return 2 * sum(n * n for n in lengths) + 7 * sum(min(n, 5) * (2 * n - min(n, 5)) for n in lengths)

    assert (metrics.step, metrics.slots, metrics.useful_tokens, metrics.supervised_tokens) == (
        7,
        128,
        useful,
        supervised,
    )
    assert metrics.loss == pytest.approx(50 / supervised)
    assert (metrics.step_s, metrics.data_wait_s) == (5.0, 1.0)
    assert metrics.slots_per_s == pytest.approx(2 * 128 / 10)
    assert metrics.useful_tokens_per_s == pytest.approx(2 * useful / 10)
    assert metrics.mfu == pytest.approx(2 * (10 * useful + 3 * supervised + attending(rows)) / 10 / 1000)
    assert metrics.mfu_padded == pytest.approx(2 * (10 * 128 + 3 * supervised + attending(tails)) / 10 / 1000)
    assert "step   7/100  loss" in step_line(metrics, steps=100)
    line = step_line(metrics, steps=100)
    assert (
        f"useful tokens/s  MFU {metrics.mfu:.1%} ({metrics.mfu_padded:.1%} with padding)  data wait 20.0%  ETA 7:45"
        in line
    )
    unknown = dataclasses.replace(metrics, mfu=None, mfu_padded=None)
    assert "useful tokens/s  data wait 20.0%  ETA 7:45" in step_line(unknown, steps=100)


def test_lines_after_the_checkpoint_and_a_line_cut_short_go_when_a_run_goes_on(tmp_path: Path) -> None:
    whole = [json.dumps({"step": step, "loss": 1.0 / step}) for step in (1, 2, 3, 4)]
    (tmp_path / "metrics.jsonl").write_text("\n".join(whole) + '\n{"step": 5, "lo')
    file = MetricsFile(tmp_path, after=3)
    file.add_eval(step=3, eval_loss=0.25, eval_supervised_tokens=9)
    kept = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in kept] == [1, 2, 3, 3]
    assert kept[-1] == {"step": 3, "eval_loss": 0.25, "eval_supervised_tokens": 9}
    assert file.first_loss() == 1.0


def test_durations_read_like_a_clock() -> None:
    assert [duration(seconds) for seconds in (0.4, 61, 3599.6, 7325)] == ["0:00", "1:01", "1:00:00", "2:02:05"]
