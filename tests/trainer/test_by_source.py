"""The loss of each source in metrics.jsonl, held against every example by itself in float64."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from packer.errors import UserError
from packer.order import Order
from packer.shards import Corpus, open_corpus
from tests.trainer.shards_fixture import CAPACITY, MAX_SEGMENTS, VOCAB, random_rows, write_corpus, write_model
from tests.trainer.tiny_models import packed_model
from trainer import RunConfig, run
from trainer.batch import Shape
from trainer.by_source import Sources, SourceWindow, sums_by_source
from trainer.float64 import float32_means_float64
from trainer.loader import read_pass
from trainer.metrics import MetricsFile
from trainer.model import load_model
from trainer.optim import make_optimizer
from trainer.ranks import Ranks
from trainer.segments import Segments
from trainer.step import train_step

NAMES = ("chat.jsonl", "code.jsonl", "sums.jsonl")
ROWS, STEPS, EVERY, ROWS_A_STEP = 11, 5, 2, 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mixed")
    write_corpus(path / "packed", rows=random_rows(ROWS, seed=0), eval_rows=random_rows(4, seed=1), sources=NAMES)
    write_model(path / "tiny")
    return path


def chosen(folder: Path, out: str, **more: object) -> RunConfig:
    options: dict[str, object] = {
        "shards": str(folder / "packed"),
        "model": str(folder / "tiny"),
        "init": "random",
        "steps": STEPS,
        "rows_per_step": ROWS_A_STEP,
        "micro_rows": 2,
        "dtype": "fp64",
        "lr": 1e-30,  # so that every step is that of the first weights
        "log_every": EVERY,
        "check": "off",
        "out": str(folder / out),
        **more,
    }
    return RunConfig(**options)  # type: ignore[arg-type]


def lines(folder: Path, out: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / out / "metrics.jsonl").read_text().splitlines()]


def alone(folder: Path, corpus: Corpus, rows: list[int]) -> tuple[dict[str, float], Counter[str], Counter[str]]:
    """Of these rows, each example run by itself: the mean loss, the useful tokens and the targets of each source."""
    model = load_model(
        str(folder / "tiny"),
        init="random",
        seed=0,
        dtype=torch.float64,
        kernels="reference",
        device="cpu",
        vocab_at_least=VOCAB,
    )
    sums, useful, targets = Counter[str](), Counter[str](), Counter[str]()
    with torch.no_grad(), float32_means_float64():
        for number in rows:
            row = corpus[number]
            for place in range(row.num_examples):
                start, end = row.cu_seqlens[place : place + 2].tolist()
                name = NAMES[int(row.example_ids[place]) % len(NAMES)]
                ids = torch.tensor(row.input_ids[start:end].astype(np.int64))
                logits = model.logits(ids[None], torch.arange(len(ids))[None], Segments.from_lengths([len(ids)]))[0]
                each = F.cross_entropy(logits[:-1], ids[1:], reduction="none")
                mask = torch.tensor(row.loss_mask[start + 1 : end])
                sums[name] += float(each[mask].sum())
                useful[name] += end - start
                targets[name] += int(mask.sum())
    return {name: sums[name] / targets[name] for name in targets if targets[name]}, useful, targets


def test_lines_hold_the_loss_of_each_source_over_their_window(folder: Path) -> None:
    assert run(chosen(folder, "out")) == 0
    corpus = open_corpus(folder / "packed")
    order = Order(rows=ROWS, rows_per_step=ROWS_A_STEP, positions=STEPS * ROWS_A_STEP, seed=0)
    windows = [[0], [1], [2, 3], [4]]  # lines after steps 1, 2, 4 and 5
    logged = [line for line in lines(folder, "out") if "loss" in line]
    assert [line["step"] for line in logged] == [1, 2, 4, 5]
    for line, steps in zip(logged, windows, strict=True):
        rows = [int(row) for step in steps for row in order.step(step).rows]
        losses, useful, targets = alone(folder, corpus, rows)
        assert line["loss_by_source"] == pytest.approx(losses, rel=1e-9)
        assert line["useful_tokens_by_source"] == useful
        assert line["supervised_tokens_by_source"] == targets
    (last,) = [line for line in lines(folder, "out") if "eval_loss" in line]
    rows = list(range(4))
    assert last["eval_loss_by_source"] == pytest.approx(
        alone(folder, open_corpus(folder / "packed", split="eval"), rows)[0], rel=1e-9
    )


def test_it_changes_no_bit_of_a_run_and_outlives_a_resume(folder: Path, tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    write_corpus(plain / "packed", rows=random_rows(ROWS, seed=0), eval_rows=random_rows(4, seed=1))
    write_model(plain / "tiny")
    both = {"lr": 1e-2, "dtype": "fp32", "loss_weighting": "example", "log_every": 1}
    assert run(chosen(plain, "out", **both)) == 0
    assert run(chosen(folder, "trained", **both, save_every=3)) == 0
    mixed, one = lines(folder, "trained"), lines(plain, "out")
    kept = {"loss", "objective", "grad_norm", "eval_loss", "step"}
    assert [{k: v for k, v in line.items() if k in kept} for line in mixed] == [
        {k: v for k, v in line.items() if k in kept} for line in one
    ]
    assert not any("source" in key for line in one for key in line)
    file = MetricsFile(folder / "trained", after=3)
    assert (file.unreadable, lines(folder, "trained")) == (0, mixed[:3])


def test_a_step_that_tells_sources_apart_asks_the_device_for_no_value(folder: Path, tmp_path: Path) -> None:
    device = torch.device("meta")
    corpus = open_corpus(folder / "packed")
    sources = Sources.of(corpus)
    assert sources is not None
    shape = Shape(rows=2, capacity=CAPACITY, max_segments=MAX_SEGMENTS, max_segment_len=CAPACITY, sources=3)
    batch = read_pass(corpus, np.arange(2), np.ones(2, bool), shape=shape, pin=False, sources=sources)
    model = packed_model("qwen3", tmp_path).to(device)
    optimizer = make_optimizer(model, lr=1.0, betas=(0.9, 0.95), weight_decay=0.1)
    result = train_step(
        model, [], optimizer, [batch, batch], denominator=9, lr=1.0, clip=1.0, reduce="pass", device=device
    )
    window = SourceWindow(sources, device)
    assert result.source_sums is not None
    window.add([batch, batch], result.source_sums)
    with pytest.raises((RuntimeError, NotImplementedError), match="meta"):
        window.close(Ranks(rank=0, world=1, local_rank=0, local_world=1, device=device))  # only here it is asked


def test_what_is_not_finite_in_one_source_stays_there(folder: Path) -> None:
    corpus = open_corpus(folder / "packed")
    shape = Shape(rows=1, capacity=CAPACITY, max_segments=MAX_SEGMENTS, max_segment_len=CAPACITY, sources=3)
    batch = read_pass(
        corpus, np.zeros(1, np.int64), np.ones(1, bool), shape=shape, pin=False, sources=Sources.of(corpus)
    )
    each = torch.ones(CAPACITY, dtype=torch.float64)
    each[0] = torch.nan
    assert batch.by_source is not None
    found = sums_by_source(each, batch).tolist()
    assert np.isnan(found).tolist() == [True, False, False]  # the first target is one of example 0, of source 0
    assert found[1:] == batch.by_source[1, 1:].tolist()


def test_an_example_that_is_not_listed_is_told_with_its_row(folder: Path) -> None:
    corpus = open_corpus(folder / "packed")
    sources = Sources(names=NAMES, of_example=np.zeros(2, np.int16))
    with pytest.raises(UserError, match=r"shard-00000.arrow, row 1: example \d+ is not in examples/, which lists 2"):
        sources.of_row(corpus[1], where=corpus.where(1))
