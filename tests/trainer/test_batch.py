"""Batches held against loops that a reader can check by eye."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.trainer.shards_fixture import CAPACITY, MAX_SEGMENTS, Example, random_rows, write_corpus
from trainer.batch import Batch, Shape, make_batch
from trainer.config import RunConfig
from trainer.loader import ShardCheck, plan_step, read_steps
from trainer.prepare import Counts, prepare
from trainer.segments import Segments, most_chunks

ROWS = random_rows(11, seed=3)
SHAPE = Shape(rows=2, capacity=CAPACITY, max_segments=MAX_SEGMENTS, max_segment_len=CAPACITY)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("batch") / "packed"
    write_corpus(path, rows=ROWS)
    return path


def a_run(folder: Path, *, micro_rows: int = 2, world: int = 1, rank: int = 0, weighted: bool = False) -> list[Batch]:
    prepared = prepare(RunConfig(shards=str(folder), model="none", epochs=3, rows_per_step=5, micro_rows=micro_rows))
    counts = Counts.of(prepared.corpus)
    check = ShardCheck(prepared.corpus, local_rank=0, local_world=1)
    plans = (plan_step(prepared, counts, step, world=world) for step in range(prepared.order.steps))
    shape = Shape(
        rows=micro_rows,
        capacity=CAPACITY,
        max_segments=MAX_SEGMENTS,
        max_segment_len=CAPACITY,
        weighted=weighted,
    )
    works = list(read_steps(plans, prepared.corpus, rank=rank, shape=shape, pin=False, check=check))
    check.finish()
    return [batch for work in works for batch in work.passes]


def hand_made_targets(row: list[Example], first_slot: int) -> list[tuple[int, int]]:
    """(slot that predicts, token predicted) of one row, slot by slot."""
    pairs, slot = [], first_slot
    for example in row:
        for token, is_target in zip(example.ids, example.mask, strict=True):
            if is_target:
                pairs.append((slot - 1, token))
            slot += 1
    return pairs


def test_every_tensor_has_one_shape_over_a_whole_run(folder: Path) -> None:
    batches = a_run(folder)
    assert len({batch.count for batch in batches}) > 3  # the run does vary
    shapes = {
        tuple(
            tuple(tensor.shape)
            for tensor in (
                batch.input_ids,
                batch.position_ids,
                batch.positions,
                batch.targets,
                batch.segments.cu_seqlens,
                batch.segments.cu_seqlens_cpu,
                batch.segments.seq_idx,
                batch.buffer,
            )
        )
        for batch in batches
    }
    assert len(shapes) == 1
    assert shapes.pop()[:7] == ((1, 128), (1, 128), (128,), (128,), (17,), (17,), (1, 128))
    assert {batch.segments.max_segment_len for batch in batches} == {CAPACITY}


def test_positions_and_targets_are_those_of_a_loop_over_the_examples(folder: Path) -> None:
    for batch in a_run(folder):
        expected = []
        for place, (number, weight) in enumerate(batch.rows):
            if weight:
                expected += hand_made_targets(ROWS[number], place * CAPACITY)
        assert batch.count == len(expected)
        assert (
            list(zip(batch.positions[: batch.count].tolist(), batch.targets[: batch.count].tolist(), strict=True))
            == expected
        )


def test_the_predicting_slot_lies_in_the_segment_of_the_token_it_predicts(folder: Path) -> None:
    for batch in a_run(folder):
        where = batch.segments.seq_idx[0]
        slots = batch.positions[: batch.count]
        assert torch.equal(where[slots], where[slots + 1])
        assert torch.equal(batch.input_ids[0][slots + 1], batch.targets[: batch.count])


def test_a_segments_first_token_is_never_a_target(folder: Path) -> None:
    for batch in a_run(folder):
        starts = set(batch.segments.boundaries.tolist())
        assert not starts & {slot + 1 for slot in batch.positions[: batch.count].tolist()}


def test_boundaries_ids_and_positions_are_those_of_the_examples_laid_end_to_end(folder: Path) -> None:
    for batch in a_run(folder):
        ends, ids, positions = [0], [], []
        for number, _ in batch.rows:
            start = ends[-1]
            for example in ROWS[number]:
                ends.append(ends[-1] + len(example.ids))
                ids += example.ids
                positions += range(len(example.ids))
            tail = start + CAPACITY - ends[-1]
            if tail:
                ends.append(ends[-1] + tail)
                ids += [0] * tail
                positions += range(tail)
        used = len(ends) - 1
        assert batch.segments.num_segments == used
        assert batch.segments.cu_seqlens.tolist() == ends + [128] * (16 - used)
        assert batch.segments.cu_seqlens_cpu.tolist() == batch.segments.cu_seqlens.tolist()
        assert batch.input_ids[0].tolist() == ids
        assert batch.position_ids[0].tolist() == positions
        assert batch.segments.seq_idx[0].tolist() == np.repeat(np.arange(used), np.diff(ends)).tolist()


def test_the_chunk_table_has_each_chunk_of_each_segment_and_travels_in_the_one_buffer(folder: Path) -> None:
    rows = {tuple(batch.segments.chunk_indices.shape) for batch in a_run(folder)}
    assert len(rows) > 1  # the number of chunks does vary, the buffer behind it does not
    for batch in a_run(folder):
        expected = [
            [segment, chunk]
            for segment, length in enumerate(batch.segments.lengths)
            for chunk in range(len(range(0, length, 64)))
        ]
        table = batch.segments.chunk_indices
        assert table.tolist() == expected
        assert len(table) <= batch.shape.chunks
        assert table.untyped_storage().data_ptr() == batch.buffer.untyped_storage().data_ptr()
        assert (table.data_ptr() - batch.buffer.data_ptr()) % 16 == 0


def test_a_targets_weight_is_one_over_the_targets_of_its_own_example(folder: Path) -> None:
    for batch in a_run(folder, weighted=True):
        expected = [
            1 / sum(example.mask)
            for number, weight in batch.rows
            if weight
            for example in ROWS[number]
            for _ in range(sum(example.mask))
        ]
        assert batch.target_weights is not None
        assert batch.target_weights[: batch.count].tolist() == expected
        assert not batch.target_weights[batch.count :].any()


@pytest.mark.parametrize("micro_rows", [1, 2, 3])
def test_weights_lie_beside_all_else_in_the_buffer_and_change_none_of_it(folder: Path, micro_rows: int) -> None:
    both = [a_run(folder, micro_rows=micro_rows, weighted=weighted) for weighted in (False, True)]
    for plain, weighted in zip(*both, strict=True):
        parts = []
        for batch in (plain, weighted):
            segments = batch.segments
            tensors = [batch.input_ids, batch.position_ids, batch.positions, batch.targets]
            parts.append([*tensors, segments.seq_idx, segments.cu_seqlens, segments.chunk_indices])
        assert all(torch.equal(first, second) for first, second in zip(*parts, strict=True))
        assert weighted.target_weights is not None
        inside = [*parts[1], weighted.target_weights]
        starts = [tensor.data_ptr() - weighted.buffer.data_ptr() for tensor in inside]
        ends = [start + tensor.nbytes for start, tensor in zip(starts, inside, strict=True)]
        by_place = sorted(zip(starts, ends, strict=True))
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(by_place))
        assert by_place[-1][1] <= weighted.buffer.nbytes
        assert all(start % 16 == 0 for start in starts)


def test_the_places_for_chunks_hold_the_most_that_can_be() -> None:
    for capacity, segments in ((64, 1), (64, 64), (128, 3), (192, 2), (8192, 64)):
        worst = Segments.from_lengths([capacity - segments + 1, *[1] * (segments - 1)])
        assert len(worst.chunk_indices) <= most_chunks(capacity, segments)


def test_a_row_of_weight_zero_gives_no_target_and_no_useful_token(folder: Path) -> None:
    corpus = prepare(RunConfig(shards=str(folder), model="none")).corpus
    rows = [corpus[0], corpus[1]]
    both = make_batch(rows, numbers=[0, 1], weights=[True, True], shape=SHAPE, pin=False)
    one = make_batch(rows, numbers=[0, 1], weights=[False, True], shape=SHAPE, pin=False)
    none = make_batch(rows, numbers=[0, 1], weights=[False, False], shape=SHAPE, pin=False)
    assert torch.equal(one.input_ids, both.input_ids)
    assert one.count == sum(sum(example.mask) for example in ROWS[1])
    assert (none.count, none.useful_tokens) == (0, 0)
    assert int(one.positions[: one.count].min()) >= CAPACITY
    assert both.useful_tokens == sum(len(example.ids) for row in ROWS[:2] for example in row)


def test_the_ranks_passes_together_hold_each_row_of_the_run_once(folder: Path) -> None:
    seen = [
        number
        for rank in range(3)
        for batch in a_run(folder, micro_rows=1, world=3, rank=rank)
        for number, weight in batch.rows
        if weight
    ]
    assert sorted(seen) == sorted(list(range(11)) * 3)


def test_all_ranks_make_the_same_number_of_passes(folder: Path) -> None:
    assert len({len(a_run(folder, micro_rows=1, world=3, rank=rank)) for rank in range(3)}) == 1
