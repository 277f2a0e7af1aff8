"""A record batch of a shard straight from Arrow, whatever the manifest says of it: what verify looks at must not depend on what it verifies.

batch = read_rows(pa.ipc.open_file(path), 0)
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from packer.schema import RowBatch


def read_rows(reader: pa.RecordBatchFileReader, number: int) -> RowBatch:
    """Record batch `number`; raises one of `packer.views.DAMAGE` where its buffers do not fit its lengths or a place has no value."""
    read = reader.get_batch(number)
    columns = {}
    for name in read.schema.names:
        column = read.column(name)
        column.validate()  # sizes of buffers against lengths: no value is read
        if column.null_count:
            raise ValueError(f"{name} has {column.null_count} places without a value")
        columns[name] = _values(column)
    return RowBatch(**columns)


def _values(column: pa.Array) -> np.ndarray:
    if not pa.types.is_fixed_size_list(column.type):
        values: np.ndarray = column.to_numpy()
        return values
    flat = column.flatten()
    if pa.types.is_boolean(flat.type):
        bits = np.frombuffer(flat.buffers()[1], dtype=np.uint8)[: len(flat) // 8]
        return np.unpackbits(bits, bitorder="little").view(np.bool_).reshape(len(column), -1)
    items: np.ndarray = flat.to_numpy()
    return items.reshape(len(column), column.type.list_size)
