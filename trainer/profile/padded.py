"""The examples of packed rows as 2-D padded batches, to be profiled beside the rows: what packing saves, in one's own trainer.

Four examples a batch in random order, each padded to the longest of them (`packer stats` calls it rows_4). A batch [B, L] is run as one pass of
B segments of L slots each, which is the same arithmetic: causal layers see the padding behind each example, targets are those of the rows.

>>> side_length([7, 100, 30, 12])
112
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from packer.order import permutation
from packer.shards import Corpus
from packer.types import Int32Array, Row
from trainer.batch import Batch, Shape, make_batch
from trainer.loader import StepPlan, StepWork, weigh

EXAMPLES = 4
_SLOTS = 64  # a pass has a multiple of these


def side_length(lengths: Sequence[int]) -> int:
    """L of a batch of examples of these lengths: the longest, rounded up so that the batch has a multiple of 64 slots."""
    step = _SLOTS // math.gcd(_SLOTS, len(lengths))
    return -(-max(lengths) // step) * step


def padded_steps(
    plans: Iterable[StepPlan], corpus: Corpus, *, seed: int, weighted: bool, pin: bool
) -> Iterator[StepWork]:
    """The work of one rank that computes whole steps alone: the examples of all these steps' rows, in random order, shared out among as many steps.

    Among all of them, because a packed row holds examples of like lengths, and a padded batch out of one row would be better than any that is drawn from
    a corpus.
    """
    plans = list(plans)
    rows = [corpus[int(row)] for plan in plans for row in plan.deal.rows[plan.deal.weights]]
    examples = [(row, place) for row in rows for place in range(row.num_examples)]
    shares = np.array_split(permutation(len(examples), seed), len(plans))
    for plan, share in zip(plans, shares, strict=True):
        batches = [share[at : at + EXAMPLES] for at in range(0, len(share), EXAMPLES)]
        drawn = [pad_together([examples[int(each)] for each in batch], pad=corpus.manifest.pad_id) for batch in batches]
        counted, weight = weigh(drawn)
        yield StepWork(
            plan=replace(
                plan,
                supervised=sum(row.num_supervised for row in drawn),
                examples=counted if weighted else None,
                weight=None if plan.weight is None else weight,
            ),
            passes=tuple(_pass(row, weighted=weighted, pin=pin) for row in drawn),
        )


def _pass(row: Row, *, weighted: bool, pin: bool) -> Batch:
    shape = Shape(
        rows=1,
        capacity=len(row.input_ids),
        max_segments=row.num_segments,
        max_segment_len=len(row.input_ids) // row.num_segments,
        weighted=weighted,
        row_weights=row.loss_weights is not None,
    )
    return make_batch([row], numbers=[0], weights=[True], shape=shape, pin=pin)


def pad_together(examples: Sequence[tuple[Row, int]], *, pad: int) -> Row:
    """Examples, each a row and its place in it, as one row of B segments of L slots, pads behind each example."""
    lengths = np.array([row.lengths[place] for row, place in examples], dtype=np.int32)
    count, side = len(examples), side_length(lengths.tolist())
    ids = np.full((count, side), pad, dtype=np.int32)
    mask = np.zeros((count, side), dtype=bool)
    weights = np.zeros((count, side), dtype=np.float32)
    for at, (row, place) in enumerate(examples):
        first = int(row.cu_seqlens[place])
        inside = slice(first, first + int(lengths[at]))
        ids[at, : lengths[at]], mask[at, : lengths[at]] = row.input_ids[inside], row.loss_mask[inside]
        if row.loss_weights is not None:
            weights[at, : lengths[at]] = row.loss_weights[inside]
    positions: Int32Array = np.tile(np.arange(side, dtype=np.int32), count)
    return Row(
        input_ids=ids.reshape(-1),
        loss_mask=mask.reshape(-1),
        position_ids=positions,
        cu_seqlens=np.arange(count + 1, dtype=np.int32) * np.int32(side),
        num_segments=count,
        num_examples=count,
        example_ids=np.array([row.example_ids[place] for row, place in examples], dtype=np.int64),
        num_supervised=int(mask.sum()),
        sum_sq_len=count * side**2,
        example_lens=lengths,
        loss_weights=None if examples[0][0].loss_weights is None else weights.reshape(-1),
    )
