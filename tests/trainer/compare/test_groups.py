"""The same examples, as rows and as padded batches: none lost, none twice, none changed, and no batch larger than it may be."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from packer.types import Row
from tests.trainer.shards_fixture import CAPACITY, PAD, random_example, random_rows, write_corpus
from trainer.batch import Batch
from trainer.compare.groups import Example, cut, examples_of, in_two_dimensions, padded_batch, padded_work
from trainer.config import RunConfig
from trainer.loader import StepWork, plan_step
from trainer.prepare import Counts, prepare


def work(folder: Path, *, step: int = 0, two_dimensional: bool = False, replicate: int = 0, rows: int = 4) -> StepWork:
    config = RunConfig(shards=str(folder), model="a/b", init="random", steps=3, rows_per_step=rows)
    prepared = prepare(config)
    plan = plan_step(prepared, Counts.of(prepared.corpus), step, world=1)
    return padded_work(
        plan,
        prepared.corpus,
        slots=CAPACITY,
        weighted=False,
        two_dimensional=two_dimensional,
        order=(0, replicate),
        pin=False,
    )


def targets_of(
    ids: torch.Tensor, lengths: list[int], positions: list[int], targets: list[int]
) -> Counter[tuple[object, ...]]:
    """The segments that have targets: their tokens, and at which of them what is predicted."""
    found: Counter[tuple[object, ...]] = Counter()
    start = 0
    for length in lengths:
        own = tuple(
            (at - start, target) for at, target in zip(positions, targets, strict=True) if start <= at < start + length
        )
        if own:
            found[(tuple(ids[start : start + length].tolist()), own)] += 1
        start += length
    return found


def segments_of(batch: Batch) -> Counter[tuple[object, ...]]:
    count = batch.count
    return targets_of(
        batch.input_ids.flatten(),
        batch.segments.lengths,
        batch.positions[:count].tolist(),
        batch.targets[:count].tolist(),
    )


@pytest.mark.parametrize("step", [0, 2])
@pytest.mark.parametrize("two_dimensional", [False, True])
def test_a_padded_step_has_the_examples_and_targets_of_the_packed_step(
    tmp_path: Path, step: int, two_dimensional: bool
) -> None:
    corpus = write_corpus(tmp_path / "packed", rows=random_rows(9, seed=3))
    made = work(tmp_path / "packed", step=step, two_dimensional=two_dimensional)
    expected: Counter[tuple[object, ...]] = Counter()
    for number in made.plan.rows.tolist():
        row = corpus[number]
        for first, end in zip(
            row.cu_seqlens[: row.num_examples], row.cu_seqlens[1 : row.num_examples + 1], strict=True
        ):
            ids, mask = row.input_ids[first:end].tolist(), row.loss_mask[first:end]
            own = tuple((at - 1, ids[at]) for at in np.flatnonzero(mask).tolist())
            expected[(tuple(ids), own)] += bool(own)
    found = sum((segments_of(batch) for batch in made.passes), Counter())
    assert found == +expected
    assert sum(batch.count for batch in made.passes) == made.plan.supervised
    assert sum(batch.useful_tokens for batch in made.passes) == sum(corpus[int(n)].tokens for n in made.plan.rows)
    assert all(batch.shape.slots <= CAPACITY for batch in made.passes)


def test_ids_in_two_dimensions_have_one_example_a_line_padded_at_its_end() -> None:
    rng = np.random.default_rng(0)
    lengths = [5, 9, 3]
    examples = [
        Example(ids=np.array(each.ids, np.int32), mask=np.array(each.mask), at=(0, 0))
        for each in (random_example(rng, length) for length in lengths)
    ]
    flat = padded_batch(examples, pad_id=PAD, weighted=True, pin=False)
    batch = in_two_dimensions(flat)
    assert batch.input_ids.shape == (3, 9)
    assert batch.to(torch.device("cpu")) is batch
    for line, example in enumerate(examples):
        assert batch.input_ids[line].tolist() == [*example.ids.tolist(), *[PAD] * (9 - len(example))]
        assert batch.position_ids[line].tolist() == [*range(len(example)), *range(9 - len(example))]
    assert flat.segments.lengths == [5, 4, 9, 3, 6]
    # 27 slots and 7 boundaries: neither is a multiple of what the buffer is aligned to
    assert flat.segments.cu_seqlens.tolist() == [0, 5, 9, 18, 21, 27, 27]
    assert flat.segments.seq_idx.tolist() == [[*[0] * 5, *[1] * 4, *[2] * 9, *[3] * 3, *[4] * 6]]
    assert flat.segments.chunk_indices.tolist() == [[segment, 0] for segment in range(5)]
    weights = flat.target_weights
    assert weights is not None
    assert float(weights[: flat.count].sum()) == pytest.approx(3.0)


def test_a_batch_in_two_dimensions_stays_so_on_another_device() -> None:
    example = Example(ids=np.arange(1, 6, dtype=np.int32), mask=np.array([False, True, True, True, True]), at=(0, 0))
    batch = in_two_dimensions(padded_batch([example, example], pad_id=PAD, weighted=False, pin=False))
    moved = batch.to(torch.device("meta"))
    assert moved.input_ids.shape == moved.position_ids.shape == (2, 5)
    assert moved.input_ids.device.type == "meta"


def test_alignment_padding_inside_a_segment_is_not_part_of_the_example() -> None:
    row = Row(
        input_ids=np.array([7, 8, 0, 0, 9, 5, 6, 0], np.int32),
        loss_mask=np.array([0, 1, 0, 0, 0, 1, 1, 0], bool),
        position_ids=np.array([0, 1, 2, 3, 0, 1, 2, 3], np.int32),
        cu_seqlens=np.array([0, 4, 8], np.int32),
        num_segments=2,
        num_examples=2,
        example_ids=np.array([0, 1]),
        num_supervised=3,
        sum_sq_len=13,
        example_lens=np.array([2, 3], np.int32),
    )
    assert [example.ids.tolist() for example in examples_of(row, 4)] == [[7, 8], [9, 5, 6]]
    assert [example.mask.tolist() for example in examples_of(row, 4)] == [[False, True], [False, True, True]]
    assert [example.at for example in examples_of(row, 4)] == [(4, 0), (4, 1)]


@given(st.lists(st.integers(1, 40), max_size=30), st.integers(1, 60))
def test_a_cut_takes_every_length_once_in_order_and_is_greedy(lengths: list[int], slots: int) -> None:
    runs = cut(lengths, slots)
    assert [place for run in runs for place in run] == list(range(len(lengths)))
    for run in runs:
        inside = [lengths[place] for place in run]
        assert len(inside) * max(inside) <= slots or len(inside) == 1
        if run.stop < len(lengths):
            assert (len(inside) + 1) * max(*inside, lengths[run.stop]) > slots


def test_a_replicate_has_the_same_examples_in_another_order(tmp_path: Path) -> None:
    write_corpus(tmp_path / "packed", rows=random_rows(9, seed=3))
    once, again = (work(tmp_path / "packed", replicate=replicate) for replicate in (0, 1))
    first, second = ([segments_of(batch) for batch in made.passes] for made in (once, again))
    assert sum(first, Counter()) == sum(second, Counter())
    assert first != second
    same = [segments_of(batch) for batch in work(tmp_path / "packed").passes]
    assert first == same
