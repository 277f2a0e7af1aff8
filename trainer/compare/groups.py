"""The examples of a step, once as rows and once as 2-D padded batches: the same group, whichever way it is laid out.

A step's group is the examples of its packed rows. For the padded rungs they are drawn in a random order and cut into batches of as many as fit into the slots
of one packed pass once each is padded to the longest of its batch, as a loader with a token budget does. The targets of the whole group are what the step's loss
is divided by, so neither the cut nor the order changes the gradient, but by rounding.

    work = padded_work(plan, corpus, slots=8192, weighted=False, two_dimensional=True, order=(seed, 0), pin=False)
    len(work.passes), sum(batch.useful_tokens for batch in work.passes)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch

from packer.order import permutation
from packer.shards import Corpus, check_row
from packer.types import BoolArray, Float32Array, Int32Array, Row
from trainer.batch import Batch, Shape, make_batch
from trainer.loader import StepPlan, StepWork


@dataclass(frozen=True, kw_only=True, slots=True)
class Example:
    """ids int32 [n], mask bool [n] (true where a token is a target), where it lies: (row, place in it), and what targets count, float32 [n], where rows say."""

    ids: Int32Array
    mask: BoolArray
    at: tuple[int, int]
    weights: Float32Array | None = None

    def __len__(self) -> int:
        return len(self.ids)


class PaddedBatch(Batch):
    """A pass whose input_ids and position_ids are [B, L]: one example a line, padded at its end to the longest of them."""

    __slots__ = ()

    def to(self, device: torch.device) -> PaddedBatch:
        return self if device == self.buffer.device else in_two_dimensions(Batch.to(self, device))


def examples_of(row: Row, number: int) -> list[Example]:
    """The examples of a row, in order, as views of it: no padding of any kind."""
    starts = row.cu_seqlens[: row.num_examples].tolist()
    spans = [slice(start, start + length) for start, length in zip(starts, row.lengths.tolist(), strict=True)]
    return [
        Example(
            ids=row.input_ids[span],
            mask=row.loss_mask[span],
            at=(number, place),
            weights=None if row.loss_weights is None else row.loss_weights[span],
        )
        for place, span in enumerate(spans)
    ]


def read_examples(corpus: Corpus, rows: Sequence[int]) -> Iterator[Example]:
    """The examples of these rows, each row held against the format first."""
    for number in rows:
        row = corpus[number]
        check_row(corpus, number, row)
        yield from examples_of(row, number)


def cut(lengths: Sequence[int], slots: int) -> list[range]:
    """Runs of neighbours of which count × longest stays within `slots`: greedy, in order. A length past `slots` has a run of its own.

    >>> cut([3, 4, 2, 9, 1], 9)
    [range(0, 2), range(2, 3), range(3, 4), range(4, 5)]
    """
    runs, first, longest = [], 0, 0
    for place, length in enumerate(lengths):
        if place > first and (place - first + 1) * max(longest, length) > slots:
            runs.append(range(first, place))
            first, longest = place, 0
        longest = max(longest, length)
    return [*runs, range(first, len(lengths))] if lengths else runs


def padded_batch(examples: Sequence[Example], *, pad_id: int, weighted: bool, pin: bool) -> Batch:
    """B examples as B rows of L slots, L the longest, one behind the other in [1, B·L]; each line's padding is a segment of its own."""
    longest = max(map(len, examples))
    shape = Shape(
        rows=len(examples),
        capacity=longest,
        max_segments=2,
        max_segment_len=longest,
        weighted=weighted,
        row_weights=any(example.weights is not None for example in examples),
    )
    rows = [_line(example, longest, pad_id) for example in examples]
    return make_batch(
        rows, numbers=[example.at[0] for example in examples], weights=[True] * len(rows), shape=shape, pin=pin
    )


def in_two_dimensions(batch: Batch) -> PaddedBatch:
    """The same pass with input_ids and position_ids as [B, L]."""
    values = {field.name: getattr(batch, field.name) for field in fields(Batch)}
    for name in ("input_ids", "position_ids"):
        values[name] = values[name].view(batch.shape.rows, batch.shape.capacity)
    return PaddedBatch(**values)


def _line(example: Example, longest: int, pad_id: int) -> Row:
    length, rest = len(example), longest - len(example)
    ends = [length, longest] if rest else [longest, longest]
    return Row(
        input_ids=np.concatenate([example.ids, np.full(rest, pad_id, np.int32)]),
        loss_mask=np.concatenate([example.mask, np.zeros(rest, bool)]),
        position_ids=np.concatenate([np.arange(length, dtype=np.int32), np.arange(rest, dtype=np.int32)]),
        cu_seqlens=np.array([0, *ends], dtype=np.int32),
        num_segments=2 if rest else 1,
        num_examples=1,
        example_ids=np.array([example.at[1], -1]),
        num_supervised=int(example.mask.sum()),
        sum_sq_len=length**2,
        loss_weights=None if example.weights is None else np.concatenate([example.weights, np.zeros(rest, np.float32)]),
    )


def padded_work(
    plan: StepPlan,
    corpus: Corpus,
    *,
    slots: int,
    weighted: bool,
    two_dimensional: bool,
    order: tuple[int, ...],
    pin: bool,
) -> StepWork:
    """A step's group as padded passes of at most `slots` slots. order: words that seed the order of the examples, beside the step's number.

    weighted: whether each target carries a weight. two_dimensional: ids as [B, L], for layers that take batches, or as [1, B·L].
    """
    group = list(read_examples(corpus, plan.deal.rows[plan.deal.weights].tolist()))
    drawn = [group[place] for place in permutation(len(group), *order, plan.step)]
    passes = []
    for run in cut([len(example) for example in drawn], slots):
        batch = padded_batch([drawn[place] for place in run], pad_id=corpus.manifest.pad_id, weighted=weighted, pin=pin)
        passes.append(in_two_dimensions(batch) if two_dimensional else batch)
    return StepWork(plan=plan, passes=tuple(passes))
