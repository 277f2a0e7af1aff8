"""The token store against the table of examples (counts) and, where asked, against every token of the rows.

check_store(folder, manifest, table, findings)
check_rows_against_store(folder, rows, findings, advance)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from packer.arrow import to_numpy, unpack_bits
from packer.examples import ExampleTable
from packer.manifest import Manifest
from packer.progress import Progress
from packer.tokens import STORE_SCHEMA
from packer.types import BoolArray, Int32Array, Int64Array
from packer.verify.findings import Findings
from packer.verify.rows import Expected, Rows
from packer.views import DAMAGE

STORE = "tokens"


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredSlice:
    """One record batch of the store (not empty): source, rows, copies, is_eval [n] and, one conversation behind the other, ids, loss_mask and turn_ends by offsets [n+1]."""

    file: str
    source: Int64Array
    rows: Int64Array
    copies: Int64Array
    is_eval: BoolArray
    offsets: Int64Array
    ids: Int32Array
    loss_mask: BoolArray
    turn_offsets: Int64Array
    turn_ends: Int32Array

    def __len__(self) -> int:
        return len(self.rows)

    def conversation(self, number: int) -> Expected:
        """One conversation of the slice, whole."""
        tokens = slice(int(self.offsets[number]), int(self.offsets[number + 1]))
        turns = slice(int(self.turn_offsets[number]), int(self.turn_offsets[number + 1]))
        return Expected(
            source=int(self.source[number]),
            row=int(self.rows[number]),
            ids=self.ids[tokens],
            loss_mask=self.loss_mask[tokens],
            turn_ends=self.turn_ends[turns],
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Stored:
    """All conversations of the store, one column each: names int64 [2, n] (source, row), lengths, supervised int64 [n], is_eval bool [n]."""

    names: Int64Array
    lengths: Int64Array
    supervised: Int64Array
    is_eval: BoolArray


def check_store(folder: Path, manifest: Manifest, table: ExampleTable | None, findings: Findings) -> bool:
    """Counts: each example's conversation is there, as long, with as many targets and of its split; all tokens are those the ledger encoded.

    Returns whether there is a store and it can be read.
    """
    if not (folder / STORE).is_dir():
        return False
    parts: list[_Stored] = []
    encoded = 0
    try:
        for part in read_store(folder):
            stored = _stored(part)
            parts.append(stored)
            encoded += int((stored.lengths * part.copies).sum())
            for number in _unsound_turns(part).tolist():
                name = f"source {part.source[number]} row {part.rows[number]}"
                findings.add("turn_ends must rise and lie in their conversation", part.file, source=name)
    except StoreError as error:
        findings.add("the token store must be readable", error.file, detail=error.why)
        return False
    findings.hold(
        encoded == manifest.ledger.tokens.get("encoded"),
        "the token store's tokens must be those that the ledger encoded",
        STORE,
        f"{encoded}, the ledger has {manifest.ledger.tokens.get('encoded')}",
    )
    if table is not None and findings.hold(bool(parts) or not len(table), "the token store must have a part", STORE):
        _counts(manifest, table, parts, findings)
    return True


def _stored(part: StoredSlice) -> _Stored:
    sizes = np.diff(part.offsets)
    supervised = np.zeros(len(part), dtype=np.int64)
    starts = part.offsets[:-1][sizes > 0]
    if len(starts):
        supervised[sizes > 0] = np.add.reduceat(part.loss_mask.view(np.uint8), starts, dtype=np.int32)
    names = np.stack([part.source, part.rows])
    return _Stored(names=names, lengths=sizes, supervised=supervised, is_eval=part.is_eval)


def _unsound_turns(part: StoredSlice) -> Int64Array:
    """Conversations whose turns do not end one behind the other, from token 1 to their last."""
    of = np.repeat(np.arange(len(part)), np.diff(part.turn_offsets))
    ends = part.turn_ends[int(part.turn_offsets[0]) : int(part.turn_offsets[-1])]
    falls = np.zeros(len(ends), dtype=bool)
    falls[1:] = (np.diff(ends) <= 0) & (of[1:] == of[:-1])
    return np.unique(of[falls | (ends < 1) | (ends > np.diff(part.offsets)[of])])


def _counts(manifest: Manifest, table: ExampleTable, parts: Sequence[_Stored], findings: Findings) -> None:
    names = np.concatenate([part.names for part in parts], axis=1)
    lengths, supervised, is_eval = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("lengths", "supervised", "is_eval")
    )
    order = np.lexsort(names[::-1])
    # One number a name, for one search of all examples.
    widest = 1 + max(int(names[1].max()), int(table.row.max(initial=0)))
    flat = (names[0] * widest + names[1])[order]
    wanted = table.source * widest + table.row
    place = np.minimum(np.searchsorted(flat, wanted), len(flat) - 1)
    found, of = flat[place] == wanted, order[place]
    # A longer conversation was cut: its examples are compared with it token by token, where that is asked for.
    whole = found & (lengths[of] <= manifest.capacity)
    for rule, broken in (
        ("every example's conversation must be in the token store", ~found),
        ("an example's tokens must be as many as in the token store", whole & (lengths[of] != table.tokens)),
        ("an example's targets must be as many as in the token store", whole & (supervised[of] != table.supervised)),
        ("an example's split must be the token store's", found & (is_eval[of] != table.is_eval)),
    ):
        for example in np.flatnonzero(broken).tolist():
            findings.add(rule, STORE, example=example, source=table.origin(example, manifest))


def check_rows_against_store(folder: Path, rows: Rows, findings: Findings, advance: Progress.Advance) -> int:
    """Every token and target of every example against the store; returns how many examples were compared."""
    compared = 0
    for part in read_store(folder):
        for number in range(len(part)):
            compared += rows.compare(
                part.conversation(number), "an example's tokens and targets must be the token store's", findings
            )
        advance(len(part))
    return compared


class StoreError(Exception):
    """A part of the store that cannot be read."""

    def __init__(self, file: str, why: str) -> None:
        super().__init__(f"{file}: {why}")
        self.file = file
        self.why = why


def read_store(folder: Path) -> Iterator[StoredSlice]:
    """The store, a record batch at a time, straight from its columns; raises StoreError."""
    for path in sorted((folder / STORE).glob("part-*.arrow")):
        file = f"{STORE}/{path.name}"
        try:
            reader = pa.ipc.open_file(pa.memory_map(str(path)))
            if [(one.name, one.type) for one in reader.schema] != [(one.name, one.type) for one in STORE_SCHEMA]:
                raise StoreError(file, "its columns are not those of the format")
            for number in range(reader.num_record_batches):
                batch = reader.get_batch(number)
                batch.validate(full=True)
                if len(batch):
                    yield _slice(file, batch)
        except DAMAGE as error:
            raise StoreError(file, " ".join(str(error).split())) from None


def _slice(file: str, batch: pa.RecordBatch) -> StoredSlice:
    ids, mask, turns = (batch.column(name) for name in ("input_ids", "loss_mask", "turn_ends"))
    offsets = to_numpy(ids.offsets).astype(np.int64)
    if not np.array_equal(offsets, to_numpy(mask.offsets)):
        raise StoreError(file, "a conversation has another number of ids than of mask bits")
    return StoredSlice(
        file=file,
        source=to_numpy(batch.column("source")).astype(np.int64),
        rows=to_numpy(batch.column("row")).astype(np.int64),
        copies=to_numpy(batch.column("copies")).astype(np.int64),
        is_eval=to_numpy(batch.column("is_eval")),
        offsets=offsets,
        ids=to_numpy(ids.values),
        loss_mask=unpack_bits(mask.values, 0, len(mask.values)),
        turn_offsets=to_numpy(turns.offsets).astype(np.int64),
        turn_ends=to_numpy(turns.values),
    )
