"""One part of the token store: a stretch of one source as tokens, in one file.

tokens/part-00000.arrow    one record batch, a line a conversation; in the schema's metadata, what became of the other rows of the stretch

head, part = read_part(Path("data/packed/tokens/part-00000.arrow"))

A part is made by one task, is whole or absent, and names what decided it (`PartHead.key`), so that a build that was killed can take it up again.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from packer.arrow import of_numpy, to_numpy, unpack_bits
from packer.errors import UserError
from packer.files import write_arrow
from packer.types import BoolArray, Float32Array, Int32Array, Int64Array
from packer.views import DAMAGE

STORE_VERSION = 1
# Columns that only some builds have, by version: code that knows only other versions refuses such a part.
_OPTIONAL = {STORE_VERSION: (), 2: ("loss_weights",), 3: ("group_hash",), 4: ("loss_weights", "group_hash")}
_HINT = "build the folder again, or restore it from a copy"


def _list_of(item: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("item", item, nullable=False))


_COLUMNS = {
    "source": pa.int16(),
    "row": pa.int64(),
    "place": pa.string(),
    "content_hash": pa.uint64(),
    "supervised": pa.int32(),
    "input_ids": _list_of(pa.int32()),
    "loss_mask": _list_of(pa.bool_()),
    "turn_ends": _list_of(pa.int32()),
    "loss_weights": _list_of(pa.float32()),
    "group_hash": pa.uint64(),
}
_ALWAYS = [name for name in _COLUMNS if name not in ("loss_weights", "group_hash")]
# By version; a part's metadata is its own.
_SCHEMAS = {
    version: pa.schema([pa.field(name, _COLUMNS[name], nullable=False) for name in (*_ALWAYS, *optional)])
    for version, optional in _OPTIONAL.items()
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Reject:
    """A row that did not become tokens."""

    source: int
    row: int
    place: str
    reason: str
    detail: str


@dataclass(frozen=True, kw_only=True, slots=True)
class PartHead:
    """Which stretch of the input a part is, and what does not stand in its columns.

    key: the digest of all that decides tokens. source, first_row, rows: the stretch. is_eval: the whole source belongs to the eval split. size: bytes
    of the source. control_tokens: (role, token) → how often the texts spelled it. notes: (kind, detail) → count. digest: of the columns.
    """

    key: str
    source: int
    is_eval: bool
    first_row: int
    rows: int
    size: int
    rejects: tuple[Reject, ...]
    control_tokens: Mapping[tuple[str, str], int]
    notes: Mapping[tuple[str, str], int]
    digest: str

    def to_json(self) -> str:
        fields = {name: getattr(self, name) for name in self.__slots__}
        for name in _COUNTERS:
            fields[name] = [[*pair, count] for pair, count in sorted(fields[name].items())]
        return json.dumps({**fields, "rejects": [asdict(one) for one in self.rejects]}, sort_keys=True)

    @classmethod
    def from_json(cls, text: bytes) -> PartHead:
        """Raises ValueError, KeyError or TypeError where the text is not what `to_json` wrote."""
        fields = json.loads(text)
        fields["rejects"] = tuple(Reject(**one) for one in fields["rejects"])
        for name in _COUNTERS:
            fields[name] = {(first, second): count for first, second, count in fields[name]}
            for (first, second), count in fields[name].items():
                _hold_types({"role": first, "token": second, "count": count}, _SPELLED_TYPES)
        head = cls(**fields)
        for what, types in ((head, _HEAD_TYPES), *((reject, _REJECT_TYPES) for reject in head.rejects)):
            _hold_types({name: getattr(what, name) for name in types}, types)
        return head


# Fields that count pairs of words; a list of [first, second, count] in JSON.
_COUNTERS = ("control_tokens", "notes")
_HEAD_TYPES = {"key": str, "source": int, "is_eval": bool, "first_row": int, "rows": int, "size": int, "digest": str}
_REJECT_TYPES = {"source": int, "row": int, "place": str, "reason": str, "detail": str}
_SPELLED_TYPES = {"role": str, "token": str, "count": int}


def _hold_types(values: Mapping[str, object], types: Mapping[str, type]) -> None:
    for name, kind in types.items():
        value = values[name]
        if type(value) is not kind:
            raise TypeError(f"{name} is {value!r}, not {kind.__name__}")
        if isinstance(value, int) and not 0 <= value < 1 << 63:
            raise ValueError(f"{name} is {value}, which nothing counts to")


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenPart:
    """n conversations of one source as tokens, one behind the other.

    source: its number. rows int64 [n]: their places in it. places: the same for people. content_hash uint64 [n]: of what was said, whatever the
    tokenizer. supervised int32 [n]: targets. offsets int32 [n+1]: conversation i holds ids[offsets[i] : offsets[i+1]]. ids int32 [T]. mask_bits
    uint8 [T/8]: the loss mask, eight tokens a byte, lowest bit first. turn_offsets int32 [n+1], turn_ends int32: likewise where each assistant's turn
    ends, counted from its conversation's first token. loss_weights float32 [T]: what each target counts in the loss, 0 where none is; None where all count 1.
    group_hash uint64 [n]: of what the eval split keeps together; None where that is the content.
    """

    source: int
    rows: Int64Array
    places: pa.StringArray
    content_hash: NDArray[np.uint64]
    supervised: Int32Array
    offsets: Int32Array
    ids: Int32Array
    mask_bits: NDArray[np.uint8]
    turn_offsets: Int32Array
    turn_ends: Int32Array
    loss_weights: Float32Array | None = None
    group_hash: NDArray[np.uint64] | None = None

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def lengths(self) -> Int32Array:
        """Tokens of each conversation, int32 [n]."""
        return np.diff(self.offsets)

    def mask(self, start: int, end: int) -> BoolArray:
        """The loss mask of tokens [start, end) of the part."""
        return _bits(self.mask_bits, start, end)

    def digest(self) -> str:
        """xxh3-128 of all columns."""
        state = xxhash.xxh3_128(str(self.source).encode())
        for column in (
            self.rows,
            self.content_hash,
            self.supervised,
            self.offsets,
            self.ids,
            self.mask_bits,
            self.turn_offsets,
            self.turn_ends,
            *(column for column in (self.loss_weights, self.group_hash) if column is not None),
        ):
            state.update(np.ascontiguousarray(column).view(np.uint8).data)
            state.update(b"|")
        state.update("\0".join(self.places.to_pylist()).encode())
        return state.hexdigest()

    def to_arrow(self, schema: pa.Schema) -> pa.RecordBatch:
        count = len(self)
        mask = pa.Array.from_buffers(pa.bool_(), len(self.ids), [None, pa.py_buffer(self.mask_bits)])

        def lists(name: str, items: pa.Array, offsets: Int32Array) -> pa.Array:
            return pa.Array.from_buffers(_COLUMNS[name], count, [None, pa.py_buffer(offsets)], children=[items])

        columns = [
            of_numpy(np.full(count, self.source, dtype=np.int16)),
            of_numpy(self.rows),
            self.places,
            of_numpy(self.content_hash),
            of_numpy(self.supervised),
            lists("input_ids", of_numpy(self.ids), self.offsets),
            lists("loss_mask", mask, self.offsets),
            lists("turn_ends", of_numpy(self.turn_ends), self.turn_offsets),
        ]
        if self.loss_weights is not None:
            columns.append(lists("loss_weights", of_numpy(self.loss_weights), self.offsets))
        if self.group_hash is not None:
            columns.append(of_numpy(self.group_hash))
        return pa.RecordBatch.from_arrays(columns, schema=schema)


def part_name(number: int) -> str:
    """The file of a part."""
    return f"part-{number:05d}.arrow"


def part_paths(folder: Path) -> list[Path]:
    """The parts of a store in order."""
    return sorted(folder.glob("part-*.arrow"), key=lambda path: (len(path.name), path.name))


def write_part(path: Path, head: PartHead, part: TokenPart) -> None:
    """Writes one part, whole or not at all."""
    optional = tuple(name for name in ("loss_weights", "group_hash") if getattr(part, name) is not None)
    version = next(version for version, columns in _OPTIONAL.items() if columns == optional)
    schema = _SCHEMAS[version].with_metadata({"store_version": str(version), "head": head.to_json()})
    write_arrow(path, schema, [part.to_arrow(schema)])


def read_part(path: Path, *, validate: bool = False) -> tuple[PartHead, TokenPart]:
    """A part by memory map: nothing is read until it is looked at. Raises UserError where the file is not a part that this version reads.

    validate: look at every offset and every text of a file that nobody vouches for, so that nothing in the arrays can lie outside them. Tokens are held
    against the digest, which is the caller's to do (`TokenPart.digest`, `PartHead.digest`).
    """
    head, part, _ = map_part(path, validate=validate)
    return head, part


def map_part(path: Path, *, validate: bool = False) -> tuple[PartHead, TokenPart, mmap.mmap]:
    """A part as `read_part` gives it, and the map that its arrays are views of."""
    try:
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        reader = pa.ipc.open_file(pa.BufferReader(pa.py_buffer(mapped)))
        metadata = reader.schema.metadata or {}
        version = metadata.get(b"store_version", b"?").decode()
        expected = _SCHEMAS.get(int(version) if version.isdecimal() else 0)
        if expected is None:
            raise UserError(f"{path}: token store of version {version}, not {' or '.join(map(str, _SCHEMAS))}", _HINT)
        head = PartHead.from_json(metadata[b"head"])
        if [(one.name, one.type) for one in reader.schema] != [(one.name, one.type) for one in expected]:
            raise ValueError("its columns are not those of the format")
        if reader.num_record_batches != 1:
            raise ValueError(f"{reader.num_record_batches} record batches, not one")
        batch = reader.get_batch(0)
        if validate:
            _validate(head, batch)
        part = _of_arrow(head.source, batch)
    except DAMAGE as error:
        raise UserError(
            f"{path}: not a readable part of a token store ({' '.join(str(error).split())})", _HINT
        ) from None
    return head, part, mapped


def _of_arrow(source: int, batch: pa.RecordBatch) -> TokenPart:
    ids, mask, turns = (batch.column(name) for name in ("input_ids", "loss_mask", "turn_ends"))
    return TokenPart(
        source=source,
        rows=to_numpy(batch.column("row")),
        places=batch.column("place"),
        content_hash=to_numpy(batch.column("content_hash")),
        supervised=to_numpy(batch.column("supervised")),
        offsets=to_numpy(ids.offsets),
        ids=to_numpy(ids.values),
        mask_bits=np.frombuffer(mask.values.buffers()[1] or b"", dtype=np.uint8)[: -(-len(mask.values) // 8)],
        turn_offsets=to_numpy(turns.offsets),
        turn_ends=to_numpy(turns.values),
        loss_weights=to_numpy(batch.column("loss_weights").values) if "loss_weights" in batch.schema.names else None,
        group_hash=to_numpy(batch.column("group_hash")) if "group_hash" in batch.schema.names else None,
    )


def _validate(head: PartHead, batch: pa.RecordBatch) -> None:
    batch.validate(full=True)
    if nulls := sum(column.null_count for column in batch.columns):
        raise ValueError(f"{nulls} places without a value")
    lists = [field.name for field in batch.schema if pa.types.is_list(field.type)]
    offsets = {name: to_numpy(batch.column(name).offsets) for name in lists}
    if not np.array_equal(offsets["input_ids"], offsets["loss_mask"]):
        raise ValueError("a conversation has another number of ids than of mask bits")
    if not np.array_equal(offsets["input_ids"], offsets.get("loss_weights", offsets["input_ids"])):
        raise ValueError("a conversation has another number of ids than of weights")
    for name, places in offsets.items():
        if (places[0], places[-1]) != (0, len(batch.column(name).values)):
            raise ValueError(f"{name} holds values of no conversation")
    if (to_numpy(batch.column("source")) != head.source).any():
        raise ValueError("its rows are of another source than its head")


def _bits(packed: NDArray[np.uint8], start: int, end: int) -> BoolArray:
    return unpack_bits(pa.Array.from_buffers(pa.bool_(), end, [None, pa.py_buffer(packed)]), start, end)
