"""The output folder while it is being written: one build at a time, nothing of anybody else's touched, nothing unfinished taken for finished.

with claim(Path("data/packed"), force=False):
    ...                      # write; the manifest comes last
"""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from packer.errors import UserError
from packer.files import sync_folder, temporary_name
from packer.manifest import MANIFEST_NAME

_CLAIM = ".packer-building"
_OURS = ("train", "eval", "examples", "tokens", "tokenizer", "rejects.jsonl", "build-log.json")
# A build that was killed while it wrote one of these leaves it under its temporary name.
_UNFINISHED = tuple(temporary_name(name) for name in ("rejects.jsonl", "build-log.json", MANIFEST_NAME))


@contextmanager
def claim(folder: Path) -> Iterator[None]:
    """Holds the folder for one build and clears what an earlier one left in it.

    Raises UserError where another build holds it, where it cannot be written, or where it holds files that packer did not write: these are never
    removed.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        strangers = sorted(
            entry.name for entry in folder.iterdir() if entry.name not in (*_OURS, *_UNFINISHED, MANIFEST_NAME, _CLAIM)
        )
        finished, begun = (folder / MANIFEST_NAME).exists(), (folder / _CLAIM).exists()
        if strangers or (any(folder.iterdir()) and not finished and not begun):
            what = strangers[0] if strangers else next(folder.iterdir()).name
            raise UserError(
                f"{folder}: holds {what!r}, which packer did not write", "give an empty or a new folder with -o"
            )
        lock = (folder / _CLAIM).open("w")
    except OSError as error:
        raise UserError(
            f"{folder}: cannot be written ({error.strerror})", "give another folder with -o, or mend its permissions"
        ) from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                f"{folder}: another build is writing into it", "wait for it to end, or give another folder with -o"
            ) from None
        # The manifest goes first: without it the rest does not look like a finished build.
        (folder / MANIFEST_NAME).unlink(missing_ok=True)
        sync_folder(folder)
        for name in (*_OURS, *_UNFINISHED):
            entry = folder / name
            if entry.is_dir():
                shutil.rmtree(entry)
            else:
                entry.unlink(missing_ok=True)
        yield
        (folder / _CLAIM).unlink()


def settle(folder: Path) -> None:
    """Takes away the mark of a build that was killed when it was all but done; leaves it where a build is at work or the folder is read-only."""
    mark = folder / _CLAIM
    with suppress(OSError), mark.open("r") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        mark.unlink()
