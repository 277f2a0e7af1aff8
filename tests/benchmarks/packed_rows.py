"""Packed rows for benchmarks of reading, without a tokenizer: what they mean does not matter there, how many bytes they are does.

write(Path("/tmp/packed"), rows=4_000, capacity=8_192)
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from packer.files import write_text
from packer.manifest import Ledger, Manifest, Masking, ShardFile, Split, Tokenizer, corpus_digest
from packer.schema import ROWS_PER_BATCH, RowBatch, position_dtype
from packer.shards import write_shard

PAD, VOCAB, MAX_SEGMENTS = 0, 151_936, 16
_MEAN_LENGTH = 1_228  # of ultrachat_200k's conversations in tokens
_SHARD_BYTES = 256 << 20


def write(folder: Path, *, rows: int, capacity: int, seed: int = 0) -> None:
    """A folder with a train split of so many full rows, in shards of about 256 MB as `packer build` makes them."""
    shard_rows = max(_SHARD_BYTES // (capacity * 6) // ROWS_PER_BATCH, 1) * ROWS_PER_BATCH
    draw = np.random.default_rng(seed)
    shards: list[ShardFile] = []
    for number, first in enumerate(range(0, rows, shard_rows)):
        batches = _batches(draw, range(first, min(first + shard_rows, rows)), capacity)
        name = f"train/shard-{number:05}.arrow"
        shards.append(
            write_shard(
                folder, name, batches, capacity=capacity, max_segments=MAX_SEGMENTS, pad_id=PAD, vocab_size=VOCAB
            )
        )
    split = Split(
        rows=rows,
        examples=rows,
        tokens=rows * capacity,
        supervised_tokens=rows,
        pad_tokens=0,
        lower_bound_rows=rows,
        max_segments=MAX_SEGMENTS,
        shards=tuple(shards),
    )
    manifest = Manifest(
        format_version=1,
        packer_version="0.1.0",
        capacity=capacity,
        max_segments=MAX_SEGMENTS,
        shard_rows=shard_rows,
        max_segment_len=capacity,
        max_example_len=capacity,
        pad_id=PAD,
        vocab_size=VOCAB,
        max_token_id=VOCAB - 1,
        stop_ids=(1,),
        sources=(),
        tokenizer=Tokenizer(name="none", revision="", digest="0" * 32),
        chat_template="0" * 32,
        masking=Masking(policy="assistant", method="marks"),
        options={},
        seed=seed,
        strategy="optimal",
        splits={"train": split},
        ledger=Ledger(conversations={}, tokens={}, control_tokens={}),
        corpus_digest=corpus_digest({"train": split}, capacity=capacity, max_segments=MAX_SEGMENTS, pad_id=PAD),
    )
    write_text(folder / "manifest.json", manifest.to_json())


def _batches(draw: np.random.Generator, numbers: range, capacity: int) -> Iterator[RowBatch]:
    for first in numbers[::ROWS_PER_BATCH]:
        count = min(ROWS_PER_BATCH, numbers.stop - first)
        cu = np.full((count, MAX_SEGMENTS + 1), capacity, np.int32)
        used = np.zeros(count, np.int32)
        for row in range(count):
            lengths = draw.gamma(4.2, _MEAN_LENGTH / 4.2, MAX_SEGMENTS - 1).astype(np.int64) + 2
            bounds = np.minimum(np.cumsum(np.concatenate([[0], lengths])), capacity)
            used[row] = np.count_nonzero(bounds < capacity)
            cu[row, : len(bounds)] = bounds
        place = np.arange(MAX_SEGMENTS)
        live = place < used[:, None]
        lengths = np.diff(cu.astype(np.int64), axis=1)
        starts = np.repeat(cu[:, :-1][live], lengths[live]).reshape(count, capacity)
        positions = np.arange(capacity) - starts
        mask = (draw.random((count, capacity)) < 0.6) & (positions > 0)
        yield RowBatch(
            input_ids=draw.integers(1, VOCAB, (count, capacity), dtype=np.int32),
            loss_mask=mask,
            position_ids=positions.astype(position_dtype(capacity)),
            cu_seqlens=cu,
            num_segments=used,
            num_examples=used,
            example_ids=np.where(live, place + (first + np.arange(count))[:, None] * MAX_SEGMENTS, -1),
            num_supervised=mask.sum(axis=1).astype(np.int32),
            sum_sq_len=(lengths**2 * live).sum(axis=1),
        )
