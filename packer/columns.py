"""The integer columns of all rows of a split in one file, columns/train.arrow: what a trainer must know of every row before its first step.

A published folder has it beside its shards, so that opening it elsewhere need not fetch all of them: 20 bytes a row instead of 50,000.

    write_columns(corpus, Path("staged/columns/train.arrow"))
    read_columns(path, rows=len(corpus))["sum_sq_len"]
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from packer.arrow import of_numpy, to_numpy
from packer.errors import UserError
from packer.files import write_arrow

if TYPE_CHECKING:
    from packer.shards import Corpus

COLUMNS = {
    "num_segments": pa.int32(),
    "num_examples": pa.int32(),
    "num_supervised": pa.int32(),
    "sum_sq_len": pa.int64(),
}


def columns_file(split: str) -> str:
    """The file's name in the folder."""
    return f"columns/{split}.arrow"


def write_columns(corpus: Corpus, path: Path) -> None:
    """Writes the columns of all rows of a split."""
    path.parent.mkdir(parents=True, exist_ok=True)
    schema = pa.schema([pa.field(name, kind, nullable=False) for name, kind in COLUMNS.items()])
    columns = [of_numpy(corpus.column(name), kind) for name, kind in COLUMNS.items()]
    write_arrow(path, schema, [pa.RecordBatch.from_arrays(columns, schema=schema)])


def read_columns(path: Path, *, rows: int) -> dict[str, np.ndarray]:
    """Each column by name, views of the map; raises UserError where the file is not of so many rows."""
    try:
        with pa.memory_map(str(path)) as file:
            table = pa.ipc.open_file(file).read_all().combine_chunks()
        found = {
            name: to_numpy(table[name].chunk(0) if table.num_rows else pa.array([], kind))
            for name, kind in COLUMNS.items()
        }
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        raise UserError(f"{path}: not a readable table ({error})", "publish the folder again") from None
    if table.num_rows != rows:
        raise UserError(f"{path}: {table.num_rows} rows, but the manifest has {rows}", "publish the folder again")
    return found
