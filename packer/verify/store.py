"""The token store against the table of examples (counts) and, where asked, against every token of the rows.

check_store(folder, manifest, table, findings)
check_rows_against_store(folder, rows, findings, advance)
"""

from __future__ import annotations

from collections.abc import Iterator
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
    """One record batch of the store: source, rows, copies [n] and, one conversation behind the other, ids, loss_mask and turn_ends by offsets [n+1]."""

    file: str
    source: Int64Array
    rows: Int64Array
    copies: Int64Array
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


def check_store(folder: Path, manifest: Manifest, table: ExampleTable | None, findings: Findings) -> bool:
    """Counts: each example's conversation is there, as long and with as many targets; all tokens are those the ledger encoded.

    Returns whether there is a store and it can be read.
    """
    if not (folder / STORE).is_dir():
        return False
    lengths: list[Int64Array] = []
    supervised: list[Int64Array] = []
    names: list[Int64Array] = []
    encoded = 0
    try:
        for part in read_store(folder):
            sizes = np.diff(part.offsets)
            lengths.append(sizes)
            supervised.append(np.diff(np.concatenate([[0], np.cumsum(part.loss_mask)])[part.offsets]))
            names.append(np.stack([part.source, part.rows]))
            encoded += int((sizes * part.copies).sum())
    except StoreError as error:
        findings.add("the token store must be readable", error.file, detail=error.why)
        return False
    findings.hold(
        encoded == manifest.ledger.tokens.get("encoded"),
        "the token store's tokens must be those that the ledger encoded",
        STORE,
        f"{encoded}, the ledger has {manifest.ledger.tokens.get('encoded')}",
    )
    if table is not None:
        empty = np.zeros(0, dtype=np.int64)
        whole = np.concatenate([np.zeros((2, 0), dtype=np.int64), *names], axis=1)
        _counts(
            manifest, table, whole, np.concatenate([empty, *lengths]), np.concatenate([empty, *supervised]), findings
        )
    return True


def _counts(
    manifest: Manifest,
    table: ExampleTable,
    names: Int64Array,
    lengths: Int64Array,
    supervised: Int64Array,
    findings: Findings,
) -> None:
    order = np.lexsort(names[::-1])
    keys = names[:, order]
    widest = 1 + max(int(keys[1].max(initial=0)), int(table.row.max(initial=0)))
    flat, wanted = keys[0] * widest + keys[1], table.source * widest + table.row
    place = np.minimum(np.searchsorted(flat, wanted), max(len(flat) - 1, 0))
    found = flat[place] == wanted if len(flat) else np.zeros(len(table), dtype=bool)
    of = order[place] if len(flat) else place
    fits = found & (lengths[of] <= manifest.capacity) if len(flat) else found
    for rule, broken in (
        ("every example's conversation must be in the token store", ~found),
        ("an example's tokens must be as many as in the token store", fits & (lengths[of] != table.tokens)),
        ("an example's targets must be as many as in the token store", fits & (supervised[of] != table.supervised)),
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
        offsets=offsets,
        ids=to_numpy(ids.values),
        loss_mask=unpack_bits(mask.values, 0, len(mask.values)),
        turn_offsets=to_numpy(turns.offsets).astype(np.int64),
        turn_ends=to_numpy(turns.values),
    )
