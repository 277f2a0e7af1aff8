"""The shards of a split: there, whole, readable, and every row by every rule. One pass over the bytes for the digest and one over the rows.

tally = check_shards(folder, manifest, "train", findings, advance)
tally.example, tally.tokens      # what is in the rows, for the sums that are held against the manifest
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from packer.digest import digest_file
from packer.manifest import Manifest, ShardFile
from packer.progress import Progress
from packer.schema import ROWS_PER_BATCH, RowBatch, broken_boundaries, broken_rules, shard_schema
from packer.types import Int64Array
from packer.verify.batches import read_rows
from packer.verify.findings import Findings
from packer.views import DAMAGE

_MOST_THREADS = 8
_EMPTY = np.zeros(0, dtype=np.int64)


@dataclass(kw_only=True, slots=True)
class Tally:
    """What lies in the rows of a split.

    complete: whether every row could be read and its boundaries are sound; otherwise the sums mean nothing. weighted: whether a target has a weight
    other than 1. example, shard, row (the place in that
    shard), start, end (slots of that row that hold its tokens, without alignment padding), supervised: int64 [n], one a segment that holds an example, in the order of the rows.
    """

    complete: bool = True
    weighted: bool = False
    rows: int = 0
    slots: int = 0
    longest_segment: int = 0
    highest_token: int = -1
    example: Int64Array = field(default_factory=lambda: _EMPTY)
    shard: Int64Array = field(default_factory=lambda: _EMPTY)
    row: Int64Array = field(default_factory=lambda: _EMPTY)
    start: Int64Array = field(default_factory=lambda: _EMPTY)
    end: Int64Array = field(default_factory=lambda: _EMPTY)
    supervised: Int64Array = field(default_factory=lambda: _EMPTY)

    @property
    def tokens(self) -> Int64Array:
        """int64 [n]: the length of each example."""
        return self.end - self.start


def check_shards(folder: Path, manifest: Manifest, name: str, findings: Findings, advance: Progress.Advance) -> Tally:
    """Checks every shard of a split, some at a time (numpy and xxhash let other threads run); advance is told megabytes."""
    shards = manifest.splits[name].shards
    threads = max(1, min(len(shards), os.cpu_count() or 1, _MOST_THREADS))
    tallies = []
    with ThreadPoolExecutor(threads) as pool:
        checks = pool.map(lambda number: _check(folder, manifest, name, number), range(len(shards)))
        for shard, (tally, found) in zip(shards, checks, strict=True):
            findings.merge(found)
            tallies.append(tally)
            advance(shard.bytes / 1e6)
    return _together(tallies)


def _check(folder: Path, manifest: Manifest, name: str, number: int) -> tuple[Tally, Findings]:
    """One shard: its file, then its rows as far as they can be read."""
    findings = Findings()
    entry = manifest.splits[name].shards[number]
    path = folder / entry.file
    if not findings.hold(path.is_file(), "every shard that the manifest names must be there", entry.file):
        return Tally(complete=False), findings
    try:
        size = path.stat().st_size
        if not findings.hold(
            size == entry.bytes,
            "a shard's size must be the manifest's",
            entry.file,
            f"{size} bytes, the manifest says {entry.bytes}",
        ):
            return Tally(complete=False), findings
        findings.hold(digest_file(path) == entry.xxh3_128, "a shard's digest must be the manifest's", entry.file)
    except OSError as error:
        findings.add("every shard that the manifest names must be there", entry.file, detail=error.strerror or "")
        return Tally(complete=False), findings
    tally = _rows(path, entry, manifest, name, findings)
    tally.shard = np.full(len(tally.example), number)
    return tally, findings


def _rows(path: Path, entry: ShardFile, manifest: Manifest, name: str, findings: Findings) -> Tally:
    expected = shard_schema(
        capacity=manifest.capacity,
        max_segments=manifest.splits[name].max_segments,
        align=manifest.align,
        weighted=manifest.weighted,
    )
    try:
        source = pa.memory_map(str(path))
        mapped = source.read_buffer()
        reader = pa.ipc.open_file(source)
        other = "" if reader.schema.equals(expected, check_metadata=True) else _difference(reader.schema, expected)
        batches = reader.num_record_batches
    except DAMAGE as error:
        findings.add("a shard must be a readable Arrow file", entry.file, detail=_why(error))
        return Tally(complete=False)
    if not findings.hold(not other, "a shard's columns and metadata must be those of the format", entry.file, other):
        return Tally(complete=False)
    parts, first, complete = [], 0, True
    for number in range(batches):
        try:
            batch = read_rows(reader, number)
        except DAMAGE as error:
            findings.add("a shard must be a readable Arrow file", entry.file, row=first, detail=_why(error))
            return Tally(complete=False)
        rows = len(batch)
        if rows != ROWS_PER_BATCH and (number < batches - 1 or not 0 < rows < ROWS_PER_BATCH):
            findings.add(
                f"record batches must hold exactly {ROWS_PER_BATCH} rows, the last one at most as many",
                entry.file,
                row=first,
                detail=f"batch {number} has {rows}",
            )
        if number == 0 and rows and not mapped.address <= batch.input_ids.ctypes.data < mapped.address + mapped.size:
            findings.add("a shard must not be compressed", entry.file)
        for row, rule in broken_rules(
            batch, pad_id=manifest.pad_id, vocab_size=manifest.vocab_size, align=manifest.align
        ):
            findings.add(rule, entry.file, row=first + row)
        broken = broken_boundaries(batch.cu_seqlens, batch.num_segments, capacity=batch.input_ids.shape[1])
        unsound = [row for row, _ in broken]
        complete &= not unsound
        sound = np.setdiff1d(np.arange(rows), unsound)
        parts.append(_tally(batch.take(sound) if unsound else batch, first + sound))
        first += rows
    findings.hold(
        first == entry.rows,
        "a shard's rows must be as many as the manifest says",
        entry.file,
        f"{first}, the manifest says {entry.rows}",
    )
    whole = _together(parts)
    whole.complete = complete
    return whole


def _why(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _difference(found: pa.Schema, expected: pa.Schema) -> str:
    """What is other about a schema, in a few words; may raise what damaged names raise."""
    if found.names != expected.names:
        return f"columns {', '.join(found.names)}"
    for mine, wanted in zip(found, expected, strict=True):
        if not mine.equals(wanted):
            return f"{mine.name} is {mine.type}{'' if mine.nullable == wanted.nullable else ', nullable'}, not {wanted.type}"
    words = {key.decode(): value.decode(errors="replace") for key, value in (found.metadata or {}).items()}
    return "metadata " + (", ".join(f"{key}={value}" for key, value in sorted(words.items())) or "missing")


def _tally(batch: RowBatch, places: Int64Array) -> Tally:
    """places int64 [n]: where in the shard each row stands. The rows' boundaries are sound."""
    rows, capacity = batch.input_ids.shape
    if not rows:
        return Tally()
    row_of, segment = np.nonzero(np.arange(batch.example_ids.shape[1]) < batch.num_segments[:, None])
    start = batch.cu_seqlens[row_of, segment].astype(np.int64)
    end = batch.cu_seqlens[row_of, segment + 1].astype(np.int64)
    example = batch.example_ids[row_of, segment]
    # Segments in use cover every slot, so each sum ends where the next begins.
    targets = np.add.reduceat(batch.loss_mask.reshape(-1).view(np.uint8), row_of * capacity + start, dtype=np.int32)
    holds = example >= 0
    filled = end if batch.example_lens is None else start + batch.example_lens[row_of, segment]
    weights = batch.loss_weights
    return Tally(
        weighted=weights is not None and bool(((weights != 0) & (weights != 1)).any()),
        rows=rows,
        slots=rows * capacity,
        longest_segment=int((end - start).max()),
        highest_token=int(batch.input_ids.max()),
        example=example[holds],
        row=places[row_of[holds]],
        start=start[holds],
        end=filled[holds],
        supervised=targets[holds].astype(np.int64),
    )


def _together(parts: Sequence[Tally]) -> Tally:
    def joined(name: str) -> Int64Array:
        return np.concatenate([_EMPTY, *(getattr(part, name) for part in parts)])

    return Tally(
        complete=all(part.complete for part in parts),
        weighted=any(part.weighted for part in parts),
        rows=sum(part.rows for part in parts),
        slots=sum(part.slots for part in parts),
        longest_segment=max((part.longest_segment for part in parts), default=0),
        highest_token=max((part.highest_token for part in parts), default=-1),
        **{name: joined(name) for name in ("example", "shard", "row", "start", "end", "supervised")},
    )
