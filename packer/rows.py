"""From a plan and the token store to the shards of a split.

plan/train.arrow          a line a row: which examples, and where their tokens lie; a record batch a shard
plan/train-00003.json     what is to be known of a shard that is done
train/shard-00003.arrow   one task: read its batch of the plan, gather the tokens, lay out, write

The plan lies on disk so that a worker reads its own part of it, and so that a shard's key can be taken from its bytes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from packer.arrow import of_numpy, to_numpy
from packer.digest import digest_file, digest_words
from packer.engine import Engine
from packer.files import write_arrow, write_text
from packer.folder import keep_only
from packer.layout import Placed, lay_out
from packer.listing import Examples
from packer.manifest import ShardFile, Split
from packer.plan import Plan, lower_bound
from packer.progress import Progress
from packer.schema import ROWS_PER_BATCH, RowBatch
from packer.shards import write_shard
from packer.tokens import TokenStore
from packer.types import Int64Array

# Tokens gathered in one go: enough for numpy to be busy, few enough to stay in a cache.
_SLOTS_AT_ONCE = 1 << 19
# Starting processes pays from here on.
_SHARDS_WORTH_PROCESSES = 4
_PLAN_COLUMNS = {"example_ids": pa.int64(), "parts": pa.int32(), "starts": pa.int32(), "lengths": pa.int32()}
_PLAN_SCHEMA = pa.schema(
    [(name, pa.list_(pa.field("item", kind, nullable=False))) for name, kind in _PLAN_COLUMNS.items()]
)


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedSplit:
    """One split before it is written: examples int64 [n] (numbers of the examples in it; None: all) and the plan over them."""

    name: str
    examples: Int64Array | None
    plan: Plan


@dataclass(frozen=True, kw_only=True, slots=True)
class RowShape:
    """What every row of a build has in common."""

    capacity: int
    pad_id: int
    vocab_size: int
    shard_rows: int
    align: int
    weighted: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Places:
    """The folder that is written, and the token store that is read, with the digest of all its tokens."""

    out: Path
    tokens: Path
    tokens_digest: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardSettings:
    """What the shards of a split have in common. key: what decides their bytes, tokens and plan and all."""

    places: Places
    split: str
    max_segments: int
    shape: RowShape
    key: str


@dataclass(frozen=True, kw_only=True, slots=True)
class DoneShard:
    """A shard on disk, its longest segment (pad tails counted) and its largest token id."""

    key: str
    shard: ShardFile
    max_segment_len: int
    max_token_id: int


@dataclass(frozen=True, kw_only=True, slots=True)
class WrittenSplit:
    """A split on disk, its longest segment (pad tails counted) and its largest token id; kept: shards that a killed build had finished."""

    split: Split
    max_segment_len: int
    max_token_id: int
    kept: int


def write_split(
    places: Places,
    planned: PlannedSplit,
    examples: Examples,
    shape: RowShape,
    engine: Engine,
    advance: Progress.Advance,
) -> WrittenSplit:
    """Lays out and writes every shard of one split that is not there already."""
    out, name, plan = places.out, planned.name, planned.plan
    count = -(-len(plan) // shape.shard_rows)
    plan_digest = _write_plan(out, planned, examples, shape.shard_rows)
    settings = ShardSettings(
        places=places,
        split=name,
        max_segments=plan.max_segments,
        shape=shape,
        key=digest_words(
            [places.tokens_digest, plan_digest, name, plan.max_segments, *map(str, asdict(shape).values())]
        ),
    )
    done = {number: found for number in range(count) if (found := _kept(settings, number))}
    kept = len(done)
    advance(sum(one.shard.rows for one in done.values()))
    keep_only(out / name, {Path(_shard_name(name, number)).name for number in done})
    (out / name).mkdir(exist_ok=True)
    due = [number for number in range(count) if number not in done]
    alone = len(due) < _SHARDS_WORTH_PROCESSES
    for one in engine.map(make_shard_writer, settings, due, here=make_shard_writer(settings), alone=alone):
        done[due[len(done) - kept]] = one
        advance(one.shard.rows)
    # A worker that was lost, and whose task was done elsewhere, leaves what it was writing.
    keep_only(out / name, {Path(one.shard.file).name for one in done.values()})
    lengths = examples.lengths if planned.examples is None else examples.lengths[planned.examples]
    tokens = int(lengths.sum(dtype=np.int64))
    split = Split(
        rows=len(plan),
        examples=len(lengths),
        tokens=tokens,
        supervised_tokens=examples.supervised[name == "eval"],
        pad_tokens=len(plan) * shape.capacity - tokens,
        lower_bound_rows=lower_bound(lengths, shape.capacity, align=shape.align),
        max_segments=plan.max_segments,
        shards=tuple(done[number].shard for number in range(count)),
    )
    return WrittenSplit(
        split=split,
        max_segment_len=max((one.max_segment_len for one in done.values()), default=0),
        max_token_id=max((one.max_token_id for one in done.values()), default=shape.pad_id),
        kept=kept,
    )


def _write_plan(out: Path, planned: PlannedSplit, examples: Examples, shard_rows: int) -> str:
    """Writes the plan with what the rows are made of, a record batch a shard, and returns its digest."""
    plan = planned.plan
    starts, lengths = examples.starts, examples.lengths

    def batches() -> Iterator[pa.RecordBatch]:
        for first in range(0, len(plan), shard_rows):
            offsets = plan.offsets[first : first + shard_rows + 1]
            members = plan.members[int(offsets[0]) : int(offsets[-1])]
            numbers = members if planned.examples is None else planned.examples[members]
            columns: dict[str, np.ndarray] = {
                "example_ids": numbers,
                "parts": examples.part_of(numbers),
                "starts": starts[numbers],
                "lengths": lengths[numbers],
            }
            ends = pa.py_buffer((offsets - offsets[0]).astype(np.int32))
            yield pa.RecordBatch.from_arrays(
                [
                    pa.Array.from_buffers(
                        _PLAN_SCHEMA.field(name).type,
                        len(offsets) - 1,
                        [None, ends],
                        children=[of_numpy(column, _PLAN_COLUMNS[name])],
                    )
                    for name, column in columns.items()
                ],
                schema=_PLAN_SCHEMA,
            )

    (out / "plan").mkdir(exist_ok=True)
    path = _plan_path(out, planned.name)
    write_arrow(path, _PLAN_SCHEMA, batches())
    return digest_file(path)


def make_shard_writer(settings: ShardSettings) -> Callable[[int], DoneShard]:
    """Opens token store and plan, and returns the function that writes the shard of a number. Done twice, it writes the same bytes twice."""
    out = settings.places.out
    store = TokenStore(settings.places.tokens)
    # Mapped: a shard of short examples has a million of them, and their 24 bytes each need not be this process's own.
    plan = pa.ipc.open_file(pa.memory_map(str(_plan_path(out, settings.split))))
    shape = settings.shape

    def write(number: int) -> DoneShard:
        batch = plan.get_batch(number)
        longest, max_token_id = 0, shape.pad_id

        def rows() -> Iterator[RowBatch]:
            nonlocal longest, max_token_id
            at_once = max(1, _SLOTS_AT_ONCE // (shape.capacity * ROWS_PER_BATCH)) * ROWS_PER_BATCH
            for start in range(0, len(batch), at_once):
                laid_out = lay_out(
                    _placed(store, batch.slice(start, at_once), weighted=shape.weighted),
                    capacity=shape.capacity,
                    max_segments=settings.max_segments,
                    pad_id=shape.pad_id,
                    align=shape.align,
                )
                longest = max(longest, int(np.diff(laid_out.cu_seqlens, axis=1).max()))
                max_token_id = max(max_token_id, int(laid_out.input_ids.max()))
                yield from _split(laid_out)

        shard = write_shard(
            out,
            _shard_name(settings.split, number),
            rows(),
            capacity=shape.capacity,
            max_segments=settings.max_segments,
            pad_id=shape.pad_id,
            vocab_size=shape.vocab_size,
            align=shape.align,
            weighted=shape.weighted,
        )
        done = DoneShard(key=settings.key, shard=shard, max_segment_len=longest, max_token_id=max_token_id)
        write_text(_note_path(settings, number), json.dumps(asdict(done), sort_keys=True) + "\n")
        return done

    return write


def _placed(store: TokenStore, rows: pa.RecordBatch, *, weighted: bool) -> Placed:
    """The tokens of some rows of a plan."""
    offsets = to_numpy(rows.column("lengths").offsets)
    columns = {name: to_numpy(rows.column(name).values)[int(offsets[0]) : int(offsets[-1])] for name in _PLAN_COLUMNS}
    where = (columns["parts"], columns["starts"], columns["lengths"])
    ids, mask = store.gather(*where)
    return Placed(
        counts=np.diff(offsets).astype(np.int64),
        example_ids=columns["example_ids"],
        lengths=columns["lengths"].astype(np.int64),
        ids=ids,
        loss_mask=mask,
        loss_weights=store.gather_weights(*where, mask) if weighted else None,
    )


def _split(batch: RowBatch) -> Iterator[RowBatch]:
    """The batches of a shard."""
    for start in range(0, len(batch), ROWS_PER_BATCH):
        yield batch.take(slice(start, start + ROWS_PER_BATCH))


def _kept(settings: ShardSettings, number: int) -> DoneShard | None:
    """A shard that is there, whole, and decided by the same; its digest is taken anew."""
    try:
        note = json.loads(_note_path(settings, number).read_text(encoding="utf-8"))
        done = DoneShard(**{**note, "shard": ShardFile(**note["shard"])})
        whole = done.key == settings.key and digest_file(settings.places.out / done.shard.file) == done.shard.xxh3_128
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return done if whole else None


def _shard_name(split: str, number: int) -> str:
    return f"{split}/shard-{number:05d}.arrow"


def _plan_path(out: Path, split: str) -> Path:
    return out / "plan" / f"{split}.arrow"


def _note_path(settings: ShardSettings, number: int) -> Path:
    return settings.places.out / "plan" / f"{settings.split}-{number:05d}.json"
