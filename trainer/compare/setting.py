"""What all rungs of a comparison share: the rows, their order by seed, the steps, and the examples that none of them is trained on.

Held out is the eval split where the shards have one (or --eval-shards); else the last twentieth of the train rows, at least one, which are then in no step.

    setting = make_setting(config, seeds=3, most_held_out=256, ranks=ranks)
    setting.prepared(config).order.step(0).rows, len(setting.held_out)
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from packer.errors import UserError
from packer.order import Order
from packer.shards import Corpus
from trainer.batch import Shape
from trainer.compare.groups import Example, read_examples
from trainer.config import RunConfig
from trainer.prepare import Counts, Prepared, check_targets, prepare
from trainer.ranks import Ranks

_TAIL = 20  # where there is no eval split: one row in so many


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """base: as `run` prepares it. rows: of the train split, the first so many are trained on. counts: of these. positions: rows that each seed trains on, repeats
    counted. held_out: examples with targets; held_out_from: where they come from, for a person; held_out_of: how many there are there."""

    base: Prepared
    ranks: Ranks
    counts: Counts
    rows: int
    positions: int
    seeds: tuple[int, ...]
    held_out: tuple[Example, ...]
    held_out_from: str
    held_out_of: int

    @property
    def steps(self) -> int:
        """Optimiser steps of each seed."""
        return self.prepared(self.base.config).order.steps

    def prepared(self, config: RunConfig) -> Prepared:
        """The run of these options, seed included, over the rows that are trained on."""
        order = Order(
            rows=self.rows,
            rows_per_step=config.rows_per_step,
            positions=self.positions,
            seed=config.seed,
            balance=config.balance,
        )
        return dataclasses.replace(self.base, config=config, order=order)

    def shape(self, config: RunConfig) -> Shape:
        """Of one packed pass."""
        return Shape(
            rows=config.micro_rows,
            capacity=self.base.corpus.capacity,
            max_segments=self.base.max_segments,
            max_segment_len=self.base.max_segment_len,
            weighted=config.loss_weighting == "example",
            row_weights=self.base.corpus.manifest.weighted,
        )


def make_setting(config: RunConfig, *, seeds: int, most_held_out: int, ranks: Ranks) -> Setting:
    """Opens the shards and sets the held-out examples aside; seeds are config.seed and those after it. Raises UserError where something does not fit together."""
    base = prepare(config)
    assert config.steps is not None  # compare has no --epochs
    corpus = base.corpus
    source, first, rows = corpus, 0, len(corpus)
    if base.eval_corpus is not None:
        source, where = base.eval_corpus, f"the {base.eval_corpus.split} split of {base.eval_corpus.name}"
    else:
        first = rows = rows - max(1, rows // _TAIL)
        where = f"the last {len(corpus) - rows:,} of the train rows of {corpus.name}, which are not trained on"
    if rows < 1:
        raise UserError(
            f"{corpus.name}: no eval split, and a single row cannot be trained on and held out",
            "build it with --eval-fraction 5%, or give --eval-shards",
        )
    held_out, total = _spread_over(source, first, most_held_out)
    if not held_out:
        raise UserError(f"nothing in {where} is a target", "give other --eval-shards")
    counts = Counts.of(corpus)
    setting = Setting(
        base=base,
        ranks=ranks,
        counts=Counts(supervised=counts.supervised[:rows], cost=counts.cost[:rows]),
        rows=rows,
        positions=config.steps * config.rows_per_step,
        seeds=tuple(range(config.seed, config.seed + seeds)),
        held_out=held_out,
        held_out_from=where,
        held_out_of=total,
    )
    for seed in setting.seeds:
        check_targets(setting.prepared(dataclasses.replace(config, seed=seed)), setting.counts)
    return setting


def _spread_over(corpus: Corpus, first: int, most: int) -> tuple[tuple[Example, ...], int]:
    """At most so many examples with targets of the rows from `first` on, evenly spread, and how many examples there are. Their shards are held against their
    digests."""
    counts = corpus.column("num_examples")[first:].astype(np.int64)
    ends, total = np.cumsum(counts), int(counts.sum())
    wanted = np.unique(np.linspace(0, total - 1, min(most, total)).round().astype(np.int64))
    rows = np.searchsorted(ends, wanted, side="right")
    places = wanted - (ends[rows] - counts[rows])
    for shard in sorted({corpus.shard_of(first + int(row)) for row in rows}):
        corpus.verify_shard(shard)
    chosen: list[Example] = []
    for row in np.unique(rows).tolist():
        examples = list(read_examples(corpus, [first + row]))
        chosen += [examples[place] for place in places[rows == row].tolist()]
    return tuple(example for example in chosen if example.mask.any()), total
