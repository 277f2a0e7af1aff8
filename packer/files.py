"""Files that are whole or absent: written under a temporary name, synced, renamed, and the folder synced.

write_text(folder / "manifest.json", text)
"""

from __future__ import annotations

import os
import resource
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

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


@contextmanager
def _whole_or_absent(path: Path, temporary: Path) -> Iterator[BinaryIO]:
    """A file to write under a temporary name; on leaving it is synced and renamed to `path`, or, after an error, removed."""
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def write_arrow(path: Path, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
    """Writes an uncompressed Arrow IPC file so that `path` is either whole or absent: temporary file, fsync, rename, fsync of the folder.

    Two writers of one file do not meet: each has a temporary name of its own, and the last to rename wins.
    """
    temporary = path.with_name(temporary_name(f"{path.name}.{uuid.uuid4().hex[:12]}"))
    with (
        _whole_or_absent(path, temporary) as file,
        pa.ipc.new_file(file, schema, options=pa.ipc.IpcWriteOptions(compression=None)) as writer,
    ):
        for batch in batches:
            writer.write_batch(batch)


def write_text(path: Path, text: str) -> None:
    """Writes a text file as `write_arrow` writes: whole or absent."""
    with _whole_or_absent(path, path.with_name(temporary_name(path.name))) as file:
        file.write(text.encode())


def remove_temporary(folder: Path) -> None:
    """Removes what a killed process was writing into a folder."""
    for left in folder.glob(temporary_name("*")):
        left.unlink()


def allow_open_files(count: int) -> None:
    """Lets this process hold `count` files open beside those it has: the usual limit of 1,024 is one that a process may lift up to a hard one."""
    spare = 256
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < count + spare:
        limit = count + spare if hard == resource.RLIM_INFINITY else min(count + spare, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, limit), hard))
