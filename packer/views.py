"""One record batch of a shard as numpy views of the memory map, and what a damaged one looks like from there.

views = read_views(reader, 3, rows=16, path=path)
views.row(0).input_ids
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.errors import UserError
from packer.schema import ROWS_PER_BATCH, RowBatch
from packer.types import Int32Array, Int64Array, Row

# What pyarrow and numpy raise on metadata that a damaged disk has changed.
DAMAGE = (pa.ArrowException, OSError, ValueError, TypeError, KeyError, IndexError, OverflowError, RuntimeError)
_Result = TypeVar("_Result")
RESTORE = "restore the shard from a copy, or build the folder again"


@dataclass(frozen=True, kw_only=True, slots=True)
class Views:
    """One record batch as numpy views. mask_bytes: uint8 [n, C/8], the mask's bits (C is a multiple of 64, so each row starts at a byte)."""

    input_ids: Int32Array
    mask_bytes: NDArray[np.uint8]
    position_ids: NDArray[np.uint16] | Int32Array
    cu_seqlens: Int32Array
    num_segments: Int32Array
    num_examples: Int32Array
    example_ids: Int64Array
    num_supervised: Int32Array
    sum_sq_len: Int64Array
    example_lens: Int32Array | None

    @classmethod
    def of(cls, batch: pa.RecordBatch) -> Views:
        def fixed(name: str) -> np.ndarray:
            column = batch.column(name)
            values: np.ndarray = column.flatten().to_numpy()
            return values.reshape(len(column), column.type.list_size)

        mask = batch.column("loss_mask").flatten()
        mask_bytes = np.frombuffer(mask.buffers()[1], dtype=np.uint8)[: len(mask) // 8]
        return cls(
            input_ids=fixed("input_ids"),
            mask_bytes=mask_bytes.reshape(len(batch), -1),
            position_ids=fixed("position_ids"),
            cu_seqlens=fixed("cu_seqlens"),
            num_segments=batch.column("num_segments").to_numpy(),
            num_examples=batch.column("num_examples").to_numpy(),
            example_ids=fixed("example_ids"),
            num_supervised=batch.column("num_supervised").to_numpy(),
            sum_sq_len=batch.column("sum_sq_len").to_numpy(),
            example_lens=fixed("example_lens") if "example_lens" in batch.schema.names else None,
        )

    def rows(self) -> RowBatch:
        """All rows, the mask unpacked."""
        return RowBatch(
            input_ids=self.input_ids,
            loss_mask=np.unpackbits(self.mask_bytes, axis=1, bitorder="little").view(np.bool_),
            position_ids=self.position_ids,
            cu_seqlens=self.cu_seqlens,
            num_segments=self.num_segments,
            num_examples=self.num_examples,
            example_ids=self.example_ids,
            num_supervised=self.num_supervised,
            sum_sq_len=self.sum_sq_len,
            example_lens=self.example_lens,
        )

    def row(self, place: int) -> Row:
        return Row(
            input_ids=self.input_ids[place],
            loss_mask=np.unpackbits(self.mask_bytes[place], bitorder="little").view(np.bool_),
            position_ids=self.position_ids[place],
            cu_seqlens=self.cu_seqlens[place],
            num_segments=int(self.num_segments[place]),
            num_examples=int(self.num_examples[place]),
            example_ids=self.example_ids[place],
            num_supervised=int(self.num_supervised[place]),
            sum_sq_len=int(self.sum_sq_len[place]),
            example_lens=None if self.example_lens is None else self.example_lens[place],
        )


def unreadable(path: Path, error: BaseException) -> UserError:
    """A shard whose Arrow metadata says what cannot be."""
    return UserError(f"{path}: not a readable shard ({' '.join(str(error).split()) or type(error).__name__})", RESTORE)


def read_views(reader: pa.RecordBatchFileReader, batch: int, *, rows: int, path: Path) -> Views:
    """Record batch number `batch`, which must have so many rows; raises UserError where it is damaged or has others."""
    return _read(reader, batch, reader.schema.names, Views.of, rows=rows, path=path)


def read_column(reader: pa.RecordBatchFileReader, batch: int, name: str, *, rows: int, path: Path) -> np.ndarray:
    """One integer column of record batch number `batch` ([n], or [n, width] of lists), checked like `read_views`."""

    def values(read: pa.RecordBatch) -> np.ndarray:
        column = read.column(name)
        if not pa.types.is_fixed_size_list(column.type):
            return column.to_numpy()  # type: ignore[no-any-return]
        flat: np.ndarray = column.flatten().to_numpy()
        return flat.reshape(len(column), column.type.list_size)

    return _read(reader, batch, [name], values, rows=rows, path=path)


def _read(
    reader: pa.RecordBatchFileReader,
    batch: int,
    names: list[str],
    view: Callable[[pa.RecordBatch], _Result],
    *,
    rows: int,
    path: Path,
) -> _Result:
    try:
        read = reader.get_batch(batch)
        columns = [read.column(name) for name in names]
        for column in columns:
            column.validate()  # sizes of buffers against lengths: no value is read
        found, nulls = len(read), sum(column.null_count for column in columns)
        result = view(read)
    except DAMAGE as error:
        raise unreadable(path, error) from None
    if found != rows or nulls:
        what = f"{found} rows where the manifest has {rows}" if found != rows else f"{nulls} places without a value"
        raise UserError(f"{path}: rows from {batch * ROWS_PER_BATCH} on: {what}", RESTORE)
    return result
