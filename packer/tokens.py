"""The token store: every conversation's ids and mask, once, whatever the capacity. Rows are laid out from it, and other capacities can be.

tokens/part-00000.arrow    one record batch: a stretch of one source as tokens; in the schema's metadata, what became of its other rows

store = TokenStore(Path("data/packed/tokens"))
ids, loss_mask = store[3]

A part is made by one task, is whole or absent, and names what decided it (`PartHead.key`), so that a build that was killed can take it up again.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from packer.arrow import of_numpy, to_numpy, unpack_bits
from packer.errors import UserError
from packer.files import allow_open_files, write_arrow
from packer.render import Example
from packer.types import BoolArray, Int32Array, Int64Array

STORE_VERSION = 1
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
    of the source. control_tokens: (role, token) → how often the texts spelled it. digest: of the columns.
    """

    key: str
    source: int
    is_eval: bool
    first_row: int
    rows: int
    size: int
    rejects: tuple[Reject, ...]
    control_tokens: Mapping[tuple[str, str], int]
    digest: str

    def to_json(self) -> str:
        spelled = [[role, token, count] for (role, token), count in sorted(self.control_tokens.items())]
        fields = {name: getattr(self, name) for name in self.__slots__}
        return json.dumps(
            {**fields, "rejects": [asdict(one) for one in self.rejects], "control_tokens": spelled}, sort_keys=True
        )

    @classmethod
    def from_json(cls, text: bytes) -> PartHead:
        """Raises ValueError, KeyError or TypeError where the text is not what `to_json` wrote."""
        fields = json.loads(text)
        fields["rejects"] = tuple(Reject(**one) for one in fields["rejects"])
        fields["control_tokens"] = {(role, token): count for role, token, count in fields["control_tokens"]}
        return cls(**fields)


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenPart:
    """n conversations of one source as tokens, one behind the other.

    source: its number. rows int64 [n]: their places in it. places: the same for people. content_hash uint64 [n]: of what was said, whatever the
    tokenizer. supervised int32 [n]: targets. offsets int32 [n+1]: conversation i holds ids[offsets[i] : offsets[i+1]]. ids int32 [T]. mask_bits
    uint8 [T/8]: the loss mask, eight tokens a byte, lowest bit first. turn_offsets int32 [n+1], turn_ends int32: likewise where each assistant's turn
    ends, counted from its conversation's first token.
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
        return pa.RecordBatch.from_arrays(columns, schema=schema)


def part_name(number: int) -> str:
    return f"part-{number:05d}.arrow"


def part_paths(folder: Path) -> list[Path]:
    """The parts of a store in order."""
    return sorted(folder.glob("part-*.arrow"), key=lambda path: (len(path.name), path.name))


def write_part(path: Path, head: PartHead, part: TokenPart) -> None:
    """Writes one part, whole or not at all."""
    schema = pa.schema(
        [pa.field(name, kind, nullable=False) for name, kind in _COLUMNS.items()],
        metadata={"store_version": str(STORE_VERSION), "head": head.to_json()},
    )
    write_arrow(path, schema, [part.to_arrow(schema)])


def read_part(path: Path) -> tuple[PartHead, TokenPart]:
    """A part by memory map: nothing is read until it is looked at. Raises UserError where the file is not a part that this version reads."""
    try:
        reader = pa.ipc.open_file(pa.memory_map(str(path)))
        metadata = reader.schema.metadata or {}
        if (version := metadata.get(b"store_version", b"?")) != str(STORE_VERSION).encode():
            raise UserError(f"{path}: token store of version {version.decode()}, not {STORE_VERSION}", _HINT)
        head = PartHead.from_json(metadata[b"head"])
        batch = reader.get_batch(0)
    except (pa.ArrowInvalid, OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}: not a readable part of a token store ({error})", _HINT) from None
    ids, mask, turns = (batch.column(name) for name in ("input_ids", "loss_mask", "turn_ends"))
    part = TokenPart(
        source=head.source,
        rows=to_numpy(batch.column("row")),
        places=batch.column("place"),
        content_hash=to_numpy(batch.column("content_hash")),
        supervised=to_numpy(batch.column("supervised")),
        offsets=to_numpy(ids.offsets),
        ids=to_numpy(ids.values),
        mask_bits=np.frombuffer(mask.values.buffers()[1] or b"", dtype=np.uint8)[: -(-len(mask.values) // 8)],
        turn_offsets=to_numpy(turns.offsets),
        turn_ends=to_numpy(turns.values),
    )
    return head, part


class TokenStore:
    """Reads a token store by memory map: len(store), store[i] → (ids int32 [n], loss_mask bool [n]). heads, parts: what it is made of."""

    def __init__(self, folder: Path) -> None:
        paths = part_paths(folder)
        # A map keeps its file open.
        allow_open_files(len(paths))
        read = [read_part(path) for path in paths]
        self.heads = [head for head, _ in read]
        self.parts = [part for _, part in read]
        self._first = np.cumsum([0, *(len(part) for part in self.parts)])

    def __len__(self) -> int:
        return int(self._first[-1])

    def __getitem__(self, index: int) -> tuple[Int32Array, BoolArray]:
        number = int(np.searchsorted(self._first, index, side="right")) - 1
        part, place = self.parts[number], index - int(self._first[number])
        start, end = int(part.offsets[place]), int(part.offsets[place + 1])
        return part.ids[start:end], part.mask(start, end)

    def gather(self, parts: Int32Array, starts: Int32Array, lengths: Int32Array) -> tuple[Int32Array, BoolArray]:
        """Stretches of tokens one behind the other: ids int32 [T] and loss_mask bool [T], T the sum of the lengths.

        parts, starts, lengths int32 [n]: tokens [start, start + length) of which part.
        """
        ends = starts + lengths
        where = list(zip(parts.tolist(), starts.tolist(), ends.tolist(), strict=True))
        ids = np.concatenate([self.parts[part].ids[start:end] for part, start, end in where])
        # The mask comes as whole bytes, is unpacked in one go, and what stood before and behind each stretch in its bytes is taken out.
        skip, first, last = starts & 7, starts >> 3, -(-ends >> 3)
        chunks = zip(parts.tolist(), first.tolist(), last.tolist(), strict=True)
        bits = np.concatenate([self.parts[part].mask_bits[start:end] for part, start, end in chunks])
        runs = np.stack([skip, lengths, (last - first) * 8 - skip - lengths], axis=1).reshape(-1)
        wanted = np.repeat(np.tile(np.array([False, True, False]), len(parts)), runs)
        return ids, np.unpackbits(bits, bitorder="little").view(np.bool_)[wanted]

    def column(self, name: str) -> np.ndarray:
        """source int16, row int64, content_hash uint64 or supervised int32 over all conversations."""
        if name == "source":
            return np.repeat(np.array([part.source for part in self.parts], dtype=np.int16), np.diff(self._first))
        columns = [getattr(part, "rows" if name == "row" else name) for part in self.parts]
        return np.concatenate(columns) if columns else np.zeros(0, dtype=np.int64)


def _bits(packed: NDArray[np.uint8], start: int, end: int) -> BoolArray:
    return unpack_bits(pa.Array.from_buffers(pa.bool_(), end, [None, pa.py_buffer(packed)]), start, end)


def join_examples(*, source: int, rows: Sequence[int], places: Sequence[str], examples: Sequence[Example]) -> TokenPart:
    """One part of examples that were made one by one."""

    def joined(arrays: Iterable[np.ndarray], dtype: type[np.generic]) -> np.ndarray:
        found = list(arrays)
        return np.concatenate(found) if found else np.zeros(0, dtype=dtype)

    def ends(sizes: Iterable[int]) -> Int32Array:
        return np.cumsum([0, *sizes]).astype(np.int32)

    mask = joined((example.loss_mask for example in examples), np.bool_)
    texts = [place.encode() for place in places]
    return TokenPart(
        source=source,
        rows=np.array(rows, dtype=np.int64),
        places=pa.Array.from_buffers(
            pa.string(), len(texts), [None, pa.py_buffer(ends(map(len, texts))), pa.py_buffer(b"".join(texts))]
        ),
        content_hash=np.array([example.content_hash for example in examples], dtype=np.uint64),
        supervised=np.array([np.count_nonzero(example.loss_mask) for example in examples], dtype=np.int32),
        offsets=ends(len(example.ids) for example in examples),
        ids=joined((example.ids for example in examples), np.int32),
        mask_bits=np.packbits(mask, bitorder="little"),
        turn_offsets=ends(len(example.turn_ends) for example in examples),
        turn_ends=joined((example.turn_ends for example in examples), np.int32),
    )


def sum_spelled(examples: Iterable[Example]) -> Counter[tuple[str, str]]:
    """How often the texts spelled control tokens, by (role, token)."""
    spelled: Counter[tuple[str, str]] = Counter()
    for example in examples:
        if example.control_tokens:
            spelled.update(example.control_tokens)
    return spelled
