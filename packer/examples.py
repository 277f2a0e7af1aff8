"""The table of examples, examples/: where each example came from, how long it is, and which split it is in.

table = read_examples(Path("data/packed"))
table.tokens[7], table.origin(7, manifest)     # 412, "chats.jsonl row 7"
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from packer.arrow import to_numpy
from packer.errors import UserError
from packer.manifest import Manifest
from packer.types import BoolArray, Int16Array, Int64Array
from packer.views import DAMAGE

_MEND = "build the folder again, or restore it from a copy"
EXAMPLES_SCHEMA = pa.schema(
    [
        ("example_id", pa.int64()),
        ("source", pa.int16()),
        ("row", pa.int64()),
        ("piece", pa.int32()),
        ("copy", pa.int32()),
        ("tokens", pa.int32()),
        ("supervised", pa.int32()),
        ("split", pa.string()),
    ]
)
_NUMBERS = [name for name in EXAMPLES_SCHEMA.names if name != "split"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ExampleTable:
    """One place an example, int64 [N] each (is_eval: bool [N], whether it is in the eval split). row: the place of its conversation in its source."""

    example_id: Int64Array
    source: Int64Array
    row: Int64Array
    piece: Int64Array
    copy: Int64Array
    tokens: Int64Array
    supervised: Int64Array
    is_eval: BoolArray

    def __len__(self) -> int:
        return len(self.example_id)

    def origin(self, example: int, manifest: Manifest) -> str:
        """Where an example came from, for a person: source, row, and which piece or copy where there are several."""
        source = int(self.source[example])
        known = 0 <= source < len(manifest.sources)
        spec = manifest.sources[source] if known else None
        name = spec.title if spec else f"source {source}"
        parts = [f"{name} row {self.row[example]}"]
        parts += [f"piece {self.piece[example]}"] if self.piece[example] else []
        parts += [f"copy {self.copy[example]}"] if self.copy[example] else []
        return ", ".join(parts)


def example_files(folder: Path) -> list[Path]:
    """The parts of the table, in order."""
    return sorted((folder / "examples").glob("*.arrow"))


def read_examples(folder: Path) -> ExampleTable:
    """Reads the table whole; raises UserError where it is missing, damaged or of other columns."""
    files = example_files(folder)
    if not files:
        raise UserError(f"{folder / 'examples'}: the table of examples is missing", _MEND)
    parts = [_read(path) for path in files]
    numbers = {
        name: np.concatenate([to_numpy(batch[name]) for part in parts for batch in part]).astype(np.int64)
        if any(parts)
        else np.zeros(0, dtype=np.int64)
        for name in _NUMBERS
    }
    splits = [pc.equal(batch["split"], "eval") for part in parts for batch in part]
    is_eval = np.concatenate([to_numpy(one) for one in splits]) if splits else np.zeros(0, dtype=np.bool_)
    return ExampleTable(is_eval=is_eval, **numbers)


def example_sources(folder: Path) -> Int16Array:
    """int16 [N]: the source of every example alone; raises UserError as `read_examples` does."""
    files = example_files(folder)
    if not files:
        raise UserError(f"{folder / 'examples'}: the table of examples is missing", _MEND)
    parts = [to_numpy(batch["source"]) for path in files for batch in _read(path)]
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int16)


def _read(path: Path) -> list[pa.RecordBatch]:
    try:
        reader = pa.ipc.open_file(pa.memory_map(str(path)))
        batches = [reader.get_batch(number) for number in range(reader.num_record_batches)]
        for batch in batches:
            batch.validate(full=True)
        columns = reader.schema.remove_metadata()
        nulls = sum(column.null_count for batch in batches for column in batch.columns)
        splits = {name for batch in batches for name in pc.unique(batch.column("split")).to_pylist()}
    except DAMAGE as error:
        raise UserError(f"{path}: not a readable table ({' '.join(str(error).split())})", _MEND) from None
    if columns != EXAMPLES_SCHEMA or nulls:
        what = f"{nulls} places without a value" if nulls else "its columns are not those of the format"
        raise UserError(f"{path}: {what}", _MEND)
    if not splits <= {"train", "eval"}:
        raise UserError(f"{path}: a split that is neither train nor eval: {', '.join(sorted(map(str, splits)))}", _MEND)
    return batches
