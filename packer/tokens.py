"""The token store: every conversation's ids and mask, once, whatever the capacity. Rows are laid out from it, and other capacities can be.

tokens/part-00000.arrow    a record batch a slice of conversations: source, row, is_eval, copies, input_ids, loss_mask

store = TokenStore(Path("data/packed/tokens"))
ids, loss_mask = store[3]
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.arrow import of_numpy, to_numpy, unpack_bits
from packer.files import write_arrow
from packer.render import Example
from packer.types import BoolArray, Int32Array, Int64Array

_PART_BYTES = 64 << 20
STORE_SCHEMA = pa.schema(
    [
        pa.field("source", pa.int16(), nullable=False),
        pa.field("row", pa.int64(), nullable=False),
        pa.field("is_eval", pa.bool_(), nullable=False),
        pa.field("copies", pa.int32(), nullable=False),
        pa.field("input_ids", pa.list_(pa.field("item", pa.int32(), nullable=False)), nullable=False),
        pa.field("loss_mask", pa.list_(pa.field("item", pa.bool_(), nullable=False)), nullable=False),
        pa.field("turn_ends", pa.list_(pa.field("item", pa.int32(), nullable=False)), nullable=False),
    ]
)


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenSlice:
    """Some conversations as tokens, one behind the other.

    rows int64 [n]: their places in the source. is_eval bool [n]. copies int32 [n]: how often each goes in. lengths int32 [n], in tokens. ids int32 [T], T the sum of the lengths. mask_bits
    uint8 [T/8]: the loss mask, eight tokens a byte, lowest bit first. turns int32 [n]: assistant's turns in each; turn_ends int32 [sum of turns]:
    where each of them ends, counted from its conversation's first token.
    """

    source: int
    rows: Int64Array
    is_eval: BoolArray
    copies: Int32Array
    lengths: Int32Array
    ids: Int32Array
    mask_bits: NDArray[np.uint8]
    turns: Int32Array
    turn_ends: Int32Array

    def mask(self) -> BoolArray:
        """The loss mask of all tokens, bool [T]."""
        return np.unpackbits(self.mask_bits, bitorder="little", count=len(self.ids)).view(np.bool_)

    def to_arrow(self) -> pa.RecordBatch:
        count = len(self.rows)
        mask = pa.Array.from_buffers(pa.bool_(), len(self.ids), [None, pa.py_buffer(self.mask_bits)])

        def lists(name: str, items: pa.Array, sizes: Int32Array) -> pa.Array:
            offsets = pa.py_buffer(np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32))
            return pa.Array.from_buffers(STORE_SCHEMA.field(name).type, count, [None, offsets], children=[items])

        columns = [
            of_numpy(np.full(count, self.source, dtype=np.int16)),
            of_numpy(self.rows),
            of_numpy(self.is_eval),
            of_numpy(self.copies),
            lists("input_ids", of_numpy(self.ids), self.lengths),
            lists("loss_mask", mask, self.lengths),
            lists("turn_ends", of_numpy(self.turn_ends), self.turns),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=STORE_SCHEMA)


def write_store(folder: Path, slices: Iterable[TokenSlice]) -> int:
    """Writes slices as they come into parts of about 64 MiB and returns the number of parts; each part is whole or absent."""
    folder.mkdir(parents=True, exist_ok=True)
    parts = 0
    waiting = iter(slices)
    for first in waiting:
        write_arrow(folder / f"part-{parts:05d}.arrow", STORE_SCHEMA, _one_part(first, waiting))
        parts += 1
    return parts


def _one_part(first: TokenSlice, more: Iterator[TokenSlice]) -> Iterator[pa.RecordBatch]:
    size = first.ids.nbytes
    yield first.to_arrow()
    while size < _PART_BYTES and (piece := next(more, None)) is not None:
        size += piece.ids.nbytes
        yield piece.to_arrow()


class TokenStore:
    """Reads a token store by memory map: len(store), store[i] → (ids int32 [n], loss_mask bool [n])."""

    def __init__(self, folder: Path) -> None:
        self._batches: list[pa.RecordBatch] = []
        self._ids: list[tuple[Int32Array, np.ndarray, pa.BooleanArray]] = []
        for path in sorted(folder.glob("part-*.arrow")):
            reader = pa.ipc.open_file(pa.memory_map(str(path)))
            for index in range(reader.num_record_batches):
                batch = reader.get_batch(index)
                ids, mask = batch.column("input_ids"), batch.column("loss_mask")
                self._batches.append(batch)
                self._ids.append((to_numpy(ids.values), to_numpy(ids.offsets), mask.values))
        self._first = np.cumsum([0, *(len(batch) for batch in self._batches)])

    def __len__(self) -> int:
        return int(self._first[-1])

    def __getitem__(self, index: int) -> tuple[Int32Array, BoolArray]:
        batch = int(np.searchsorted(self._first, index, side="right")) - 1
        place = index - int(self._first[batch])
        ids, offsets, mask = self._ids[batch]
        start, end = int(offsets[place]), int(offsets[place + 1])
        return ids[start:end], unpack_bits(mask, start, end)

    def column(self, name: str) -> np.ndarray:
        """source int16, row int64 or is_eval bool over all conversations."""
        parts = [to_numpy(batch.column(name)) for batch in self._batches]
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)


def join_examples(
    *, source: int, rows: Sequence[int], is_eval: Sequence[bool], copies: Sequence[int], examples: Sequence[Example]
) -> TokenSlice:
    """One slice of examples that were made one by one."""

    def joined(arrays: list[np.ndarray], dtype: type[np.generic]) -> np.ndarray:
        return np.concatenate(arrays) if arrays else np.zeros(0, dtype=dtype)

    return TokenSlice(
        source=source,
        rows=np.array(rows, dtype=np.int64),
        is_eval=np.array(is_eval, dtype=bool),
        copies=np.array(copies, dtype=np.int32),
        lengths=np.array([len(example.ids) for example in examples], dtype=np.int32),
        ids=joined([example.ids for example in examples], np.int32),
        mask_bits=np.packbits(joined([example.loss_mask for example in examples], np.bool_), bitorder="little"),
        turns=np.array([len(example.turn_ends) for example in examples], dtype=np.int32),
        turn_ends=joined([example.turn_ends for example in examples], np.int32),
    )
