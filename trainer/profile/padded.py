"""The examples of packed rows as 2-D padded batches, to be profiled beside the rows: what packing saves, in one's own trainer.

Four examples a batch in random order, each padded to the longest of them (`packer stats` calls it rows_4). A batch [B, L] is run as one pass of
B segments of L slots each, which is the same arithmetic: causal layers see the padding behind each example, targets are those of the rows.

>>> side_length([7, 100, 30, 12])
112
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from packer.order import permutation
from packer.shards import Corpus
from packer.types import Int32Array, Row
from trainer.batch import Batch, Shape, make_batch
from trainer.loader import StepPlan, StepWork

EXAMPLES = 4
_SLOTS = 64  # a pass has a multiple of these


def side_length(lengths: Sequence[int]) -> int:
    """L of a batch of examples of these lengths: the longest, rounded up so that the batch has a multiple of 64 slots."""
    step = _SLOTS // math.gcd(_SLOTS, len(lengths))
    return -(-max(lengths) // step) * step


def padded_steps(
    plans: Iterator[StepPlan], corpus: Corpus, *, seed: int, weighted: bool, pin: bool
) -> Iterator[StepWork]:
    """The work of one rank that computes whole steps alone: the examples of each step's rows, 4 a pass."""
    for plan in plans:
        rows = [corpus[int(row)] for row in plan.rows[_trained(plan)]]
        examples = [(row, place) for row in rows for place in range(row.num_examples)]
        order = permutation(len(examples), seed, plan.step)
        batches = [order[at : at + EXAMPLES] for at in range(0, len(order), EXAMPLES)]
        passes = [
            _pass([examples[int(each)] for each in batch], pad=corpus.manifest.pad_id, weighted=weighted, pin=pin)
            for batch in batches
        ]
        yield StepWork(plan=plan, passes=tuple(passes))


def _trained(plan: StepPlan) -> np.ndarray:
    return np.isin(plan.rows, plan.deal.rows[plan.deal.weights])


def _pass(examples: Sequence[tuple[Row, int]], *, pad: int, weighted: bool, pin: bool) -> Batch:
    row = pad_together(examples, pad=pad)
    shape = Shape(
        rows=1,
        capacity=len(row.input_ids),
        max_segments=row.num_segments,
        max_segment_len=len(row.input_ids) // row.num_segments,
        weighted=weighted,
    )
    return make_batch([row], numbers=[0], weights=[True], shape=shape, pin=pin)


def pad_together(examples: Sequence[tuple[Row, int]], *, pad: int) -> Row:
    """Examples, each a row and its place in it, as one row of B segments of L slots, pads behind each example."""
    lengths = np.array([row.lengths[place] for row, place in examples], dtype=np.int32)
    count, side = len(examples), side_length(lengths.tolist())
    ids = np.full((count, side), pad, dtype=np.int32)
    mask = np.zeros((count, side), dtype=bool)
    for at, (row, place) in enumerate(examples):
        first = int(row.cu_seqlens[place])
        inside = slice(first, first + int(lengths[at]))
        ids[at, : lengths[at]], mask[at, : lengths[at]] = row.input_ids[inside], row.loss_mask[inside]
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
    )
