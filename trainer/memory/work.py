"""What a run would work through: steps and tokens from the shards' own counts, hours where a rate is given.

work = work_of(config, prepared)
work.steps, work.hours
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from pathlib import Path

from packer.errors import UserError
from packer.order import Order
from trainer.config import RunConfig
from trainer.memory.config import PlanConfig
from trainer.metrics import read_metrics
from trainer.prepare import Prepared, prepare

# Segments of a row where no shards say how many there are: one for so many slots, as in rows of chats.
_SLOTS_A_SEGMENT = 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class Rows:
    """What a pass is made of. segments: in a row, the pad tail counted; supervised: targets in the row that has most. max_segments: places for them.
    row_weights: whether targets have weights of their own."""

    capacity: int
    segments: int
    supervised: int
    max_segments: int
    vocabulary: int
    row_weights: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """steps: optimiser steps; rows: passed in all; slots of them; useful and supervised tokens where the shards say; squares: Σ of squared example
    lengths. tokens_per_s, hours: where a rate is known."""

    steps: int
    rows: int
    slots: int
    useful_tokens: int | None
    supervised_tokens: int | None
    squares: int | None
    tokens_per_s: float | None
    hours: float | None


def prepared_of(config: PlanConfig) -> Prepared | None:
    """The shards as a run would open them; None where none are named."""
    if config.shards is None:
        return None
    options = RunConfig(
        shards=config.shards,
        cache=config.cache,
        model=config.model,
        init="random",
        steps=config.steps,
        epochs=config.epochs,
        rows_per_step=config.rows_per_step,
        micro_rows=config.micro_rows,
        replicas=config.replicas,
        eval_every=0,
    )
    return prepare(options, world=config.ranks)


def rows_of(config: PlanConfig, prepared: Prepared | None) -> Rows:
    """From the shards, or without them rows full of targets."""
    if prepared is None:
        assert config.capacity is not None  # PlanConfig has seen to it
        segments = max(config.capacity // _SLOTS_A_SEGMENT, 1)
        return Rows(
            capacity=config.capacity,
            segments=segments,
            supervised=config.capacity,
            max_segments=segments,
            vocabulary=1,
        )
    corpus, manifest = prepared.corpus, prepared.corpus.manifest
    return Rows(
        capacity=corpus.capacity,
        segments=max(round(float(corpus.column("num_segments").mean())), 1),
        supervised=int(corpus.column("num_supervised").max()),
        max_segments=prepared.max_segments,
        vocabulary=max(manifest.max_token_id, manifest.pad_id) + 1,
        row_weights=manifest.weighted,
    )


def work_of(config: PlanConfig, prepared: Prepared | None) -> Work | None:
    """Steps, tokens and hours; None where neither shards nor --rows or --steps say how much there is."""
    if prepared is not None:
        order, info = prepared.order, prepared.corpus.info
        squares = int(prepared.corpus.column("sum_sq_len").astype("int64").sum())
        counted = [count * order.positions // order.rows for count in (info.tokens, info.supervised_tokens, squares)]
        return _work(config, order.steps, order.positions, prepared.corpus.capacity, counted)
    if config.steps is None and config.rows is None:
        return None
    assert config.capacity is not None
    positions = (
        config.steps * config.rows_per_step if config.steps is not None else (config.rows or 0) * (config.epochs or 1)
    )
    order = Order(
        rows=config.rows or positions, rows_per_step=config.rows_per_step, positions=positions, seed=0, balance="off"
    )
    return _work(config, order.steps, positions, config.capacity, [None, None, None])


def _work(config: PlanConfig, steps: int, rows: int, capacity: int, counted: list[int] | list[None]) -> Work:
    useful, supervised, squares = counted
    rate = config.tokens_per_s if config.run is None else _rate_of(Path(config.run))
    # Without shards a row is taken for full.
    tokens = rows * capacity if useful is None else useful
    return Work(
        steps=steps,
        rows=rows,
        slots=rows * capacity,
        useful_tokens=useful,
        supervised_tokens=supervised,
        squares=squares,
        tokens_per_s=rate,
        hours=None if rate is None else tokens / rate / 3600,
    )


def _rate_of(run: Path) -> float:
    """The median useful tokens a second of a run's lines, all its ranks together."""
    rates = [line["useful_tokens_per_s"] for line in read_metrics(run) if line.get("useful_tokens_per_s")]
    if not rates:
        raise UserError(
            f"--run {run}: no line of metrics.jsonl there has a rate", "give the folder of a run that has made a step"
        )
    return statistics.median(rates)
