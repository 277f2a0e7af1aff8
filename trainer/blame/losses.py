"""The loss of every example of a step: the packed rows as the run computes them, with a sum for each segment.

A packed example computes what it computes alone (`trainer check` proves it), so one pass of a row gives the loss of each of its examples.

    work = Work.of(prepared, step=12, ranks=ranks)
    for one in measure(model, units, work, ranks): one.example, one.loss
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule

from packer.shards import Corpus
from trainer.batch import Batch, Shape
from trainer.loader import ShardCheck, plan_step, read_pass
from trainer.prepare import Counts, Prepared
from trainer.ranks import Ranks
from trainer.step import loss_of


@dataclass(frozen=True, kw_only=True, slots=True)
class ExampleLoss:
    """row: in the train split; segment: its place there. start, end: its slots, alignment padding not counted. loss_sum: over its `targets`, each as often as
    the row says, which makes `target_weight` (their number where rows have no weights). times: how often the step has its row, more than once where it spans epochs."""

    row: int
    segment: int
    example: int
    start: int
    end: int
    targets: int
    loss_sum: float
    target_weight: float
    times: int = 1

    @property
    def loss(self) -> float | None:
        """A target; None where nothing is one."""
        return self.loss_sum / self.target_weight if self.targets else None

    @property
    def finite(self) -> bool:
        return math.isfinite(self.loss_sum)


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """A step to be taken apart. rows: those that were trained on, in order, each once, and how often the step has each. left_out: others of the step, skipped by the run. loss_weight: what the step's
    targets count. shape: of a pass of one row."""

    corpus: Corpus
    step: int
    rows: tuple[int, ...]
    times: tuple[int, ...]
    left_out: tuple[int, ...]
    loss_weight: float
    shape: Shape

    @classmethod
    def of(cls, prepared: Prepared, *, step: int, ranks: Ranks) -> Work:
        """The work of step `step` (from 1), every shard that it reads held against its digest first. Raises UserError where one differs."""
        corpus = prepared.corpus
        plan = ranks.together(lambda: plan_step(prepared, Counts.of(corpus), step - 1, world=1))
        trained, times = np.unique(plan.deal.rows[plan.deal.weights], return_counts=True)
        check = ShardCheck(corpus, local_rank=ranks.local_rank, local_world=ranks.local_world)
        try:
            check.touch(trained)
            ranks.together(check.finish)
        finally:
            check.close()
        skipped = np.intersect1d(plan.rows, prepared.config.skip_rows)
        return cls(
            corpus=corpus,
            step=step,
            rows=tuple(trained.tolist()),
            times=tuple(times.tolist()),
            left_out=tuple(skipped.tolist()),
            loss_weight=plan.loss_weight,
            shape=Shape(
                rows=1,
                capacity=corpus.capacity,
                max_segments=prepared.max_segments,
                max_segment_len=prepared.max_segment_len,
                row_weights=corpus.manifest.weighted,
            ),
        )

    def read(self, row: int, *, weight: bool, ranks: Ranks) -> Batch:
        """One row as a pass, on the host; every rank calls it."""
        pin = ranks.device.type == "cuda"
        return ranks.together(
            lambda: read_pass(self.corpus, np.array([row]), np.array([weight]), shape=self.shape, pin=pin)
        )


def measure(model: nn.Module, units: Sequence[FSDPModule], work: Work, ranks: Ranks) -> list[ExampleLoss]:
    """The examples of a step in the order of its rows; every rank calls it, computes a share of the rows, and gets them all."""
    mine: list[ExampleLoss] = []
    each = torch.zeros(work.shape.slots, dtype=torch.float64, device=ranks.device)
    with torch.no_grad():
        for first in range(0, len(work.rows), ranks.world):
            # Ranks that the rows do not fill compute one of them at weight 0: every rank makes every pass.
            place = first + ranks.rank
            real = place < len(work.rows)
            batch = work.read(work.rows[place if real else first], weight=real, ranks=ranks)
            loss_of(model, batch.to(ranks.device), each)
            if real:
                mine += _by_example(work, place, batch, each[: batch.count].cpu().numpy())
    for unit in units:
        unit.reshard()  # without a backward nothing else frees what the forward gathered
    found = [one for part in ranks.gather_objects(mine) for one in part]
    return sorted(found, key=lambda one: (one.row, one.segment))


def _by_example(work: Work, at: int, batch: Batch, each: np.ndarray) -> list[ExampleLoss]:
    """Of the row at place `at`. each: float64 [count], the loss of every target of it."""
    row = work.corpus[work.rows[at]]
    segment = batch.segments.seq_idx[0, batch.positions[: batch.count]].numpy()
    own = np.ones(batch.count) if batch.target_weights is None else batch.target_weights[1, : batch.count].numpy()
    targets = np.bincount(segment, minlength=row.num_segments)
    sums = np.bincount(segment, weights=own * each, minlength=row.num_segments)
    counted = np.bincount(segment, weights=own, minlength=row.num_segments)
    return [
        ExampleLoss(
            row=work.rows[at],
            segment=place,
            example=int(row.example_ids[place]),
            start=int(row.cu_seqlens[place]),
            end=int(row.cu_seqlens[place]) + int(row.lengths[place]),
            targets=int(targets[place]),
            loss_sum=float(sums[place]),
            target_weight=float(counted[place]),
            times=work.times[at],
        )
        for place in range(row.num_examples)
    ]
