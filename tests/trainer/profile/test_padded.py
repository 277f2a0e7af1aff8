"""Examples of packed rows as padded batches: the same tokens, the same targets, the same loss."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from packer.shards import Corpus
from tests.trainer.shards_fixture import random_rows, write_corpus
from trainer.batch import Shape
from trainer.config import RunConfig
from trainer.loader import ShardCheck, StepWork, plan_step, read_steps
from trainer.prepare import Counts, prepare
from trainer.profile.padded import pad_together, padded_steps, side_length


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    return write_corpus(tmp_path / "packed", rows=random_rows(7, seed=3))


def test_a_batch_is_padded_to_its_longest_and_has_a_multiple_of_64_slots() -> None:
    for lengths in ([64], [1], [65], [7, 100, 30, 12], [16, 16, 16, 16], [3, 5], [9, 9, 9]):
        side = side_length(lengths)
        assert side >= max(lengths)
        assert side * len(lengths) % 64 == 0
        assert side - max(lengths) < 64
    assert side_length([16, 3, 2, 1]) == 16


def test_each_example_lies_at_the_start_of_its_own_row_of_the_batch(corpus: Corpus) -> None:
    row = corpus[0]
    examples = [(row, place) for place in range(3)]
    padded = pad_together(examples, pad=0)
    side = len(padded.input_ids) // 3
    for place in range(3):
        length = int(row.lengths[place])
        source = slice(int(row.cu_seqlens[place]), int(row.cu_seqlens[place]) + length)
        target = slice(place * side, place * side + length)
        behind = slice(target.stop, (place + 1) * side)
        assert np.array_equal(padded.input_ids[target], row.input_ids[source])
        assert np.array_equal(padded.loss_mask[target], row.loss_mask[source])
        assert not padded.input_ids[behind].any()
        assert not padded.loss_mask[behind].any()
        assert np.array_equal(padded.position_ids[place * side : (place + 1) * side], np.arange(side))
    assert padded.cu_seqlens.tolist() == [0, side, 2 * side, 3 * side]
    assert padded.tokens == int(row.lengths[:3].sum())


def test_padded_steps_have_the_tokens_and_targets_of_the_packed_ones(corpus: Corpus, tmp_path: Path) -> None:
    config = RunConfig(
        shards=str(tmp_path / "packed"), model="m", steps=3, rows_per_step=2, skip_rows=(1, 4), eval_every=0
    )
    prepared, counts = prepare(config), Counts.of(corpus)
    plans = [plan_step(prepared, counts, step, world=1) for step in range(3)]
    shape = Shape(rows=1, capacity=corpus.capacity, max_segments=corpus.max_segments, max_segment_len=64)
    check = ShardCheck(corpus, local_rank=0, local_world=1)
    packed = list(read_steps(iter(plans), corpus, rank=0, shape=shape, pin=False, check=check))
    check.close()
    padded = list(padded_steps(iter(plans), corpus, seed=0, weighted=False, pin=False))

    def targets(steps: list[StepWork]) -> list[int]:
        return sorted(int(t) for work in steps for b in work.passes for t in b.targets[: b.count])

    assert len(padded) == len(packed) == 3
    assert targets(padded) == targets(packed)
    useful = [sum(b.useful_tokens for work in steps for b in work.passes) for steps in (packed, padded)]
    assert useful[0] == useful[1] > 0
    for work in padded:
        assert work.plan.denominator == sum(batch.count for batch in work.passes) > 0
        assert all(batch.segments.num_segments <= 4 for batch in work.passes)
        assert all(batch.shape.slots % 64 == 0 for batch in work.passes)
    assert sum(b.shape.slots for w in padded for b in w.passes) > useful[0]
    weighted = list(padded_steps(iter(plans), corpus, seed=0, weighted=True, pin=False))
    assert [work.plan.denominator for work in weighted] == [
        sum(batch.segments.num_segments for batch in work.passes) for work in padded
    ]  # every example here has a target
