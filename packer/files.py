"""Files that are whole or absent: written under a temporary name, synced, renamed, and the folder synced.

write_text(folder / "manifest.json", text)
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa


def sync_folder(folder: Path) -> None:
    """Makes the names in a folder durable: a rename is on disk only once the folder is."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def temporary_name(name: str) -> str:
    """What a file is called while it is being written."""
    return f".{name}.tmp"


def write_arrow(path: Path, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
    """Writes an uncompressed Arrow IPC file so that `path` is either whole or absent: temporary file, fsync, rename, fsync of the folder."""
    temporary = path.with_name(temporary_name(path.name))
    with temporary.open("wb") as file:
        with pa.ipc.new_file(file, schema, options=pa.ipc.IpcWriteOptions(compression=None)) as writer:
            for batch in batches:
                writer.write_batch(batch)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_folder(path.parent)


def write_text(path: Path, text: str) -> None:
    """Writes a text file as `write_arrow` writes: whole or absent."""
    temporary = path.with_name(temporary_name(path.name))
    with temporary.open("w", encoding="utf-8", newline="\n") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_folder(path.parent)
