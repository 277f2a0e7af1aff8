"""Ways to break a folder of packed shards on purpose, with everything that would give it away mended, so that one rule alone can notice.

rewrite_rows(folder, "train/shard-00000.arrow", lambda columns: columns["loss_mask"].__setitem__((3, 0), True))
set_stored(folder / "tokens" / "part-00000.arrow", "input_ids", 5, [1, 2, 3])
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

Document = dict[str, Any]
Columns = dict[str, np.ndarray]


def edit_manifest(folder: Path, change: Callable[[Document], object], *, mend: bool = True) -> None:
    """Changes the manifest and writes it in its own form; mend: with the corpus digest that its shards then make."""
    path = folder / "manifest.json"
    document = json.loads(path.read_text(encoding="utf-8"))
    change(document)
    if mend:
        document["corpus_digest"] = corpus_digest(document)
    path.write_text(json.dumps(document, sort_keys=True, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def corpus_digest(document: Document) -> str:
    """Written down a second time, from packer/FORMAT.md: C, S, pad id, then each split's name and digests."""
    words = [document["capacity"], document["max_segments"], document["pad_id"]]
    for name in sorted(document["splits"]):
        words += [name, *(shard["xxh3_128"] for shard in document["splits"][name]["shards"])]
    return xxhash.xxh3_128_hexdigest(b"".join(str(word).encode() + b"\0" for word in words))


def mend_shard(folder: Path, file: str) -> None:
    """Makes the manifest say of a shard what now lies there."""
    data = (folder / file).read_bytes()

    def change(document: Document) -> None:
        for split in document["splits"].values():
            for shard in split["shards"]:
                if shard["file"] == file:
                    shard.update(bytes=len(data), xxh3_128=xxhash.xxh3_128_hexdigest(data))

    edit_manifest(folder, change)


def rewrite_table(
    path: Path,
    change: Callable[[pa.Table], pa.Table],
    *,
    batch_rows: int | None = None,
    options: pa.ipc.IpcWriteOptions | None = None,
) -> None:
    """Reads an Arrow file, changes it and writes it in batches as it was, or of so many rows."""
    reader = pa.ipc.open_file(path.read_bytes())
    sizes = [reader.get_batch(number).num_rows for number in range(reader.num_record_batches)]
    table = change(reader.read_all())
    batches = table.combine_chunks().to_batches(max_chunksize=batch_rows or max(sizes, default=1))
    with pa.ipc.new_file(path, table.schema, options=options) as writer:
        for batch in batches:
            writer.write_batch(batch)


def rewrite_rows(folder: Path, file: str, change: Callable[[Columns], object]) -> None:
    """Changes a shard's rows as numpy arrays ([n, C], [n, S+1] …), and the manifest's size and digest with them."""

    def changed(table: pa.Table) -> pa.Table:
        columns = dict(_columns(table))
        change(columns)
        arrays = []
        for field in table.schema:
            values = columns[field.name].reshape(-1)
            if pa.types.is_fixed_size_list(field.type):
                items = pa.array(values, type=field.type.value_type)
                arrays.append(pa.FixedSizeListArray.from_arrays(items, type=field.type))
            else:
                arrays.append(pa.array(values, type=field.type))
        return pa.table(arrays, schema=table.schema)

    rewrite_table(folder / file, changed)
    mend_shard(folder, file)


def _columns(table: pa.Table) -> Iterator[tuple[str, np.ndarray]]:
    for field in table.schema:
        values = table[field.name].combine_chunks()
        if pa.types.is_fixed_size_list(field.type):
            flat = values.flatten().to_numpy(zero_copy_only=False)
            yield field.name, flat.reshape(len(values), -1).copy()
        else:
            yield field.name, values.to_numpy(zero_copy_only=False).copy()


def set_cell(path: Path, column: str, row: int, value: object) -> None:
    """Changes one cell of an Arrow file of plain columns (examples/, or a column of tokens/)."""

    def changed(table: pa.Table) -> pa.Table:
        values = table[column].to_pylist()
        values[row] = value
        place = table.schema.get_field_index(column)
        return table.set_column(
            place, table.schema.field(column), pa.array(values, type=table.schema.field(column).type)
        )

    rewrite_table(path, changed)


def set_stored(path: Path, column: str, row: int, value: object) -> None:
    """Changes one cell of a part of the token store, and its head's digest with it."""
    set_cell(path, column, row, value)
    mend_part(path)


def edit_head(path: Path, change: Callable[[Document], object], *, mend: bool = True) -> None:
    """Changes what a part of the token store says of itself; mend: with the digest that its columns then make."""

    def changed(table: pa.Table) -> pa.Table:
        head = json.loads(table.schema.metadata[b"head"])
        if mend:
            head["digest"] = part_digest(table, head["source"])
        change(head)
        return table.replace_schema_metadata({**table.schema.metadata, b"head": json.dumps(head, sort_keys=True)})

    rewrite_table(path, changed)


def mend_part(path: Path) -> None:
    """Makes a part's head say what now lies in its columns."""
    edit_head(path, lambda head: head)


def part_digest(table: pa.Table, source: int) -> str:
    """Written down a second time: the source, then each column's little-endian bytes, lists as offsets, items and, of masks, bits; last the places."""

    def lists(name: str) -> list[np.ndarray]:
        cells = table[name].to_pylist()
        items = [item for cell in cells for item in cell]
        flat = (
            np.packbits(np.array(items, dtype=bool), bitorder="little")
            if name == "loss_mask"
            else np.array(items, np.float32 if name == "loss_weights" else np.int32)
        )
        return [np.cumsum([0, *map(len, cells)]).astype(np.int32), flat]

    plain = [
        np.array(table[name].to_pylist(), kind)
        for name, kind in (("row", "i8"), ("content_hash", "u8"), ("supervised", "i4"))
    ]
    ids, (_, mask), turns = lists("input_ids"), lists("loss_mask"), lists("turn_ends")
    weights = [lists("loss_weights")[1]] if "loss_weights" in table.column_names else []
    groups = [np.array(table["group_hash"].to_pylist(), "u8")] if "group_hash" in table.column_names else []
    columns = (*plain, *ids, mask, *turns, *weights, *groups)
    data = str(source).encode() + b"".join(column.tobytes() + b"|" for column in columns)
    return xxhash.xxh3_128_hexdigest(data + "\0".join(table["place"].to_pylist()).encode())
