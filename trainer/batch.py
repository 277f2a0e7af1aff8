"""What one pass of one rank computes on: M rows flattened to one sequence, in tensors whose shapes never change in a run.

The shift by one happens here and nowhere else: `positions[i]` is the slot whose hidden state predicts `targets[i]`, the slot before the
target's. A segment's first token is never a target, so that slot always lies in the target's own segment.

    batch = make_batch(rows, numbers=[17, 4], weights=[True, True], shape=Shape(rows=2, capacity=8192, max_segments=16, max_segment_len=8192), pin=False)
    loss_sum = model(batch.input_ids, batch.position_ids, batch.segments, batch.positions, batch.targets, batch.count)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from packer.types import Float64Array, Int64Array, Row
from trainer.segments import Segments, chunk_table, most_chunks


def _even_words(places: int) -> int:
    """64-bit words that hold so many int32, an even number of them."""
    return (places + 3) // 4 * 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """The sizes of every pass of a run: M rows of C slots (T = M·C), S places for segments in each. max_segment_len: of the whole corpus.
    weighted: whether every example weighs the same in what is optimised. row_weights: whether the rows say what each target counts. sources: how many are told
    apart (0: the corpus has one, and nothing is). balanced: whether each slot carries its weight in a router loss."""

    rows: int
    capacity: int
    max_segments: int
    max_segment_len: int
    weighted: bool = False
    sources: int = 0
    balanced: bool = False
    row_weights: bool = False

    @property
    def slots(self) -> int:
        """T, of a pass."""
        return self.rows * self.capacity

    @property
    def places(self) -> int:
        """Of cu_seqlens: M·S+1."""
        return self.rows * self.max_segments + 1

    @property
    def chunks(self) -> int:
        """Places for chunks of the chunked kernels: no pass has more."""
        return self.rows * most_chunks(self.capacity, self.max_segments)

    @property
    def factors(self) -> int:
        """Weights of each target: one that is optimised by, and where the rows have their own, that one beside it."""
        return 2 if self.row_weights else int(self.weighted)

    @property
    def words(self) -> int:
        """Size of the buffer behind a batch in 64-bit words: four tensors of int64 [T] (and of float64 [T] as many as targets have factors, and one where it is
        balanced), then int32 [T], [M·S+1] (once more where sources are told apart) and [chunks, 2]."""
        return self.table + self.chunks

    @property
    def table(self) -> int:
        """Where the chunk table starts in the buffer: on a multiple of 16 bytes, as loads of kernels are compiled for."""
        return (
            (4 + self.factors + self.balanced) * self.slots
            + self.bounds // 2
            + (1 + bool(self.sources)) * _even_words(self.places)
        )

    @property
    def bounds(self) -> int:
        """Where cu_seqlens starts in the int32 part of the buffer: behind seq_idx, on a multiple of 16 bytes too."""
        return (self.slots + 3) // 4 * 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """One pass of one rank.

    lengths: int64 [examples], on the host, of the examples in rows of weight 1.
    input_ids, position_ids: int64 [1, T]. segments: the boundaries of all M rows. positions, targets: int64 [T], of which the first `count`
    are real and the rest 0; rows of weight 0 contribute none. useful_tokens: tokens of examples, in rows of weight 1 (no pad).
    target_weights: float64 [T], 1 ÷ the targets of the target's own example, where the shape is weighted; [2, T] where rows have weights of their own:
    the target's times that, and the target's; None where neither is. loss_weight: what the real targets count together, their number where rows have no
    weights. segment_sources: int32 [M·S+1], the source of each segment's example; by_source: float64 [3, sources] on the host, each one's useful tokens,
    targets, and what these count. None unless sources are told apart.
    slot_weights: float64 [M, C], 1 ÷ the row's useful tokens on these in rows of weight 1, else 0; None unless the shape is balanced.
    rows: (number in the corpus, weight) of each. All but the host integers and `segments.cu_seqlens_cpu` are views of `buffer`: one copy
    to the device moves them all.
    """

    shape: Shape
    lengths: Int64Array
    buffer: Tensor
    input_ids: Tensor
    position_ids: Tensor
    segments: Segments
    positions: Tensor
    targets: Tensor
    target_weights: Tensor | None
    segment_sources: Tensor | None
    slot_weights: Tensor | None
    count: int
    useful_tokens: int
    loss_weight: float
    by_source: Float64Array | None
    rows: tuple[tuple[int, bool], ...]

    def to(self, device: torch.device) -> Batch:
        """The same batch on a device: one copy, which does not wait where the buffer is pinned. On CPU the batch itself."""
        if device == self.buffer.device:
            return self
        return _batch(
            self.shape,
            self.lengths,
            self.buffer.to(device, non_blocking=True),
            cu_seqlens_cpu=self.segments.cu_seqlens_cpu,
            num_segments=self.segments.num_segments,
            num_chunks=len(self.segments.chunk_indices),
            count=self.count,
            useful_tokens=self.useful_tokens,
            loss_weight=self.loss_weight,
            by_source=self.by_source,
            rows=self.rows,
        )


def _views(buffer: Tensor, shape: Shape) -> tuple[Tensor, ...]:
    """input_ids, position_ids, positions, targets (int64 [T]), seq_idx (int32 [T]), cu_seqlens (int32 [M·S+1]), chunk_indices (int32 [chunks, 2]),
    target_weights (float64 [factors·T]), segment_sources (int32 [M·S+1], or [0]), slot_weights (float64 [T], or [0]).
    Where T is a multiple of 64, as in rows, each is aligned."""
    slots, words = shape.slots, shape.slots * (4 + shape.factors + shape.balanced)
    ids, places, positions, targets = (buffer[place * slots : (place + 1) * slots] for place in range(4))
    halves, factors = buffer[words : shape.table].view(torch.int32), buffer[4 * slots : words].view(torch.float64)
    factors, balance = factors[: slots * shape.factors], factors[slots * shape.factors :]
    table = buffer[shape.table :].view(torch.int32).view(-1, 2)
    bounds = halves[shape.bounds : shape.bounds + shape.places]
    sources = halves[shape.bounds + 2 * _even_words(shape.places) :][: shape.places if shape.sources else 0]
    return ids, places, positions, targets, halves[:slots], bounds, table, factors, sources, balance


def _batch(
    shape: Shape,
    lengths: Int64Array,
    buffer: Tensor,
    *,
    cu_seqlens_cpu: Tensor,
    num_segments: int,
    num_chunks: int,
    count: int,
    useful_tokens: int,
    loss_weight: float,
    by_source: Float64Array | None,
    rows: tuple[tuple[int, bool], ...],
) -> Batch:
    input_ids, position_ids, positions, targets, seq_idx, cu_seqlens, chunks, factors, sources, balance = _views(
        buffer, shape
    )
    segments = Segments(
        cu_seqlens=cu_seqlens,
        cu_seqlens_cpu=cu_seqlens_cpu,
        seq_idx=seq_idx[None],
        num_segments=num_segments,
        max_segment_len=shape.max_segment_len,
        chunk_indices=chunks[:num_chunks],
    )
    return Batch(
        shape=shape,
        lengths=lengths,
        buffer=buffer,
        input_ids=input_ids[None],
        position_ids=position_ids[None],
        segments=segments,
        positions=positions,
        targets=targets,
        target_weights=None if not shape.factors else factors.view(2, -1) if shape.row_weights else factors,
        segment_sources=sources if shape.sources else None,
        slot_weights=balance.view(shape.rows, -1) if shape.balanced else None,
        count=count,
        useful_tokens=useful_tokens,
        loss_weight=loss_weight,
        by_source=by_source,
        rows=rows,
    )


def make_batch(
    rows: Sequence[Row],
    *,
    numbers: Sequence[int],
    weights: Sequence[bool],
    shape: Shape,
    pin: bool,
    sources: Sequence[Int64Array] = (),
) -> Batch:
    """Lays M rows out as one pass, on the host. numbers: the rows' places in the corpus. pin: page-locked memory, for a GPU. sources: of each row, where
    sources are told apart, the source of each of its examples."""
    if not len(rows) == len(numbers) == len(weights) == shape.rows:
        raise ValueError(f"a pass takes {shape.rows} rows, got {len(rows)}")
    buffer = torch.zeros(shape.words, dtype=torch.int64, pin_memory=pin)
    views = [view.numpy() for view in _views(buffer, shape)]
    input_ids, position_ids, positions, targets, seq_idx, cu_seqlens, chunks, factors, segment_sources, balance = views
    cu_seqlens.fill(shape.slots)
    cu_seqlens[0] = 0
    capacity, used, count, useful, counts = shape.capacity, 0, 0, 0, 0.0
    factors = factors.reshape(shape.factors, shape.slots)
    by_source = np.zeros((3, shape.sources)) if shape.sources else None
    for place, (row, weight) in enumerate(zip(rows, weights, strict=True)):
        if row.loss_weights is not None and not shape.row_weights:
            raise ValueError(f"row {numbers[place]} has weights, and the pass no place for them")
        first = place * capacity
        ids = input_ids[first : first + capacity]
        ids[:] = row.input_ids
        position_ids[first : first + capacity] = row.position_ids
        ends = row.cu_seqlens[1 : row.num_segments + 1]
        seq_idx[first : first + capacity] = np.repeat(
            np.arange(used, used + row.num_segments), np.diff(ends, prepend=0)
        )
        cu_seqlens[used + 1 : used + row.num_segments + 1] = ends + first
        if by_source is not None:
            segment_sources[used : used + row.num_examples] = sources[place]
        used += row.num_segments
        if weight:
            slots = np.flatnonzero(row.loss_mask)
            positions[count : count + len(slots)] = slots + (first - 1)
            targets[count : count + len(slots)] = ids[slots]
            factors[:, count : count + len(slots)] = 1
            if row.loss_weights is not None:
                factors[:, count : count + len(slots)] = row.loss_weights[slots]
            counts += len(slots) if row.loss_weights is None else float(factors[1, count : count + len(slots)].sum())
            if shape.weighted:
                segment = seq_idx[slots + first]
                factors[0, count : count + len(slots)] *= 1 / np.bincount(segment)[segment]
            count += len(slots)
            useful += row.tokens
            if shape.balanced:
                for start, length in zip(row.cu_seqlens[: row.num_examples] + first, row.lengths, strict=True):
                    balance[start : start + length] = 1 / row.tokens
            if by_source is not None:
                by_source += _counts(row, sources[place], shape.sources)
    table = chunk_table(cu_seqlens[: used + 1])
    chunks[: len(table)] = table
    trained = [row.lengths for row, weight in zip(rows, weights, strict=True) if weight]
    return _batch(
        shape,
        np.concatenate(trained).astype(np.int64) if trained else np.zeros(0, np.int64),
        buffer,
        cu_seqlens_cpu=torch.from_numpy(cu_seqlens.copy()),
        num_segments=used,
        num_chunks=len(table),
        count=count,
        useful_tokens=useful,
        loss_weight=counts,
        by_source=by_source,
        rows=tuple((int(number), bool(weight)) for number, weight in zip(numbers, weights, strict=True)),
    )


def _counts(row: Row, sources: Int64Array, number: int) -> Float64Array:
    """float64 [3, number]: useful tokens and targets of each source in a row, and what these count. sources: of each of its examples."""
    every = (row.lengths, *targets_of_examples(row))
    return np.stack([np.bincount(sources, weights=each, minlength=number) for each in every])


def targets_of_examples(row: Row) -> tuple[Int64Array, Float64Array]:
    """Of each example of a row: how many targets it has, and what these count together, int64 and float64 [num_examples]."""
    bounds = row.cu_seqlens[: row.num_examples + 1]
    weights = row.loss_mask if row.loss_weights is None else row.loss_weights
    number, counted = (
        np.diff(np.append(0, np.cumsum(each))[bounds]) for each in (row.loss_mask, weights.astype(np.float64))
    )
    return number, counted
