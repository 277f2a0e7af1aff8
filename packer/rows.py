"""From a plan and the token store to the shards of a split, and the table of examples beside them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from packer.arrow import of_numpy, of_words
from packer.files import write_arrow
from packer.intake import Examples
from packer.layout import Placed, lay_out
from packer.manifest import Split
from packer.plan import Plan, lower_bound
from packer.progress import Progress
from packer.schema import ROWS_PER_BATCH, RowBatch
from packer.shards import write_shard
from packer.tokens import TokenStore
from packer.types import Int64Array

_EXAMPLES_SCHEMA = pa.schema(
    [
        ("example_id", pa.int64()),
        ("source", pa.int16()),
        ("row", pa.int64()),
        ("piece", pa.int32()),
        ("copy", pa.int32()),
        ("tokens", pa.int32()),
        ("supervised", pa.int32()),
        ("split", pa.string()),
    ]
)


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedSplit:
    """One split before it is written: examples int64 [n] (numbers of the examples in it) and the plan over them."""

    name: str
    examples: Int64Array
    plan: Plan


@dataclass(frozen=True, kw_only=True, slots=True)
class RowShape:
    """What every row of a build has in common."""

    capacity: int
    pad_id: int
    vocab_size: int
    shard_rows: int
    align: int


@dataclass(frozen=True, kw_only=True, slots=True)
class WrittenSplit:
    """A split on disk, its longest segment (pad tails counted) and its largest token id."""

    split: Split
    max_segment_len: int
    max_token_id: int


def write_split(
    out: Path, planned: PlannedSplit, examples: Examples, store: TokenStore, shape: RowShape, advance: Progress.Advance
) -> WrittenSplit:
    """Lays out and writes every shard of one split."""
    plan, chosen = planned.plan, planned.examples
    longest, max_token_id = 0, shape.pad_id

    def batches(first: int, end: int) -> Iterator[RowBatch]:
        nonlocal longest, max_token_id
        for start in range(first, end, ROWS_PER_BATCH):
            numbers = [chosen[plan.row(row)] for row in range(start, min(start + ROWS_PER_BATCH, end))]
            placed = [[_piece(int(number), examples, store) for number in row] for row in numbers]
            batch = lay_out(
                placed,
                capacity=shape.capacity,
                max_segments=plan.max_segments,
                pad_id=shape.pad_id,
                align=shape.align,
            )
            longest = max(longest, int(np.diff(batch.cu_seqlens, axis=1).max()))
            max_token_id = max(max_token_id, int(batch.input_ids.max()))
            yield batch
            advance(len(batch))

    shards = tuple(
        write_shard(
            out,
            f"{planned.name}/shard-{number:05d}.arrow",
            batches(first, min(first + shape.shard_rows, len(plan))),
            capacity=shape.capacity,
            max_segments=plan.max_segments,
            pad_id=shape.pad_id,
            vocab_size=shape.vocab_size,
            align=shape.align,
        )
        for number, first in enumerate(range(0, len(plan), shape.shard_rows))
    )
    tokens = int(examples.lengths[chosen].sum())
    split = Split(
        rows=len(plan),
        examples=len(chosen),
        tokens=tokens,
        supervised_tokens=int(examples.supervised[chosen].sum()),
        pad_tokens=len(plan) * shape.capacity - tokens,
        lower_bound_rows=lower_bound(examples.lengths[chosen], shape.capacity, align=shape.align),
        max_segments=plan.max_segments,
        shards=shards,
    )
    return WrittenSplit(split=split, max_segment_len=longest, max_token_id=max_token_id)


def _piece(number: int, examples: Examples, store: TokenStore) -> Placed:
    """An example's tokens and mask; a piece that begins inside a conversation has no target on its first token."""
    ids, mask = store[int(examples.stored[number])]
    start = int(examples.starts[number])
    end = start + int(examples.lengths[number])
    if start:
        mask = mask[start:end].copy()
        mask[0] = False
        return number, ids[start:end], mask
    return number, ids[:end], mask[:end]


def write_examples(out: Path, store: TokenStore, examples: Examples) -> None:
    """examples/: where each example came from, its size, and the split it is in."""
    count = len(examples.lengths)
    columns = {
        "example_id": np.arange(count),
        "source": store.column("source")[examples.stored],
        "row": store.column("row")[examples.stored],
        "piece": examples.piece,
        "copy": examples.copy,
        "tokens": examples.lengths,
        "supervised": examples.supervised,
    }
    split = of_words(examples.is_eval, ("train", "eval"))
    arrays = [
        of_numpy(columns[field.name], field.type) if field.name in columns else split for field in _EXAMPLES_SCHEMA
    ]
    (out / "examples").mkdir(exist_ok=True)
    write_arrow(
        out / "examples" / "part-00000.arrow",
        _EXAMPLES_SCHEMA,
        [pa.RecordBatch.from_arrays(arrays, schema=_EXAMPLES_SCHEMA)],
    )
