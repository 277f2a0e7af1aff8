"""The output folder while it is being written: one build at a time, nothing of anybody else's touched, nothing unfinished taken for finished.

with claim(Path("data/packed")):
    ...                      # write; the manifest comes last
    set_aside(folder, ["plan"])
    write manifest

What a killed build finished stays where it is: each stage judges for itself what of it can be kept.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from packer.errors import UserError
from packer.files import sync_folder, temporary_name
from packer.manifest import MANIFEST_NAME

_CLAIM = ".packer-building"
# Held by whatever process is at work in the folder: those of a killed build outlive it by a moment.
_WORK = ".packer-working"
# Where what is not part of a finished folder waits to be removed, so that a build killed right before its manifest loses nothing.
_ASIDE = ".packer-aside"
_MARKS = (_CLAIM, _WORK, _ASIDE)
_KEPT = ("tokens", "plan", "train", "eval")
_MADE_AGAIN = ("examples", "tokenizer", "rejects.jsonl", "build-log.json")
# A build that was killed while it wrote one of these leaves it under its temporary name.
_UNFINISHED = tuple(temporary_name(name) for name in ("rejects.jsonl", "build-log.json", MANIFEST_NAME))
_SECONDS_FOR_ORPHANS = 30.0


@contextmanager
def claim(folder: Path) -> Iterator[None]:
    """Holds the folder for one build and takes the manifest out of it.

    Raises UserError where another build holds it, where it cannot be written, or where it holds files that packer did not write: these are never
    removed.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _refuse_strangers(folder)
        mark = folder / _CLAIM
        lock = mark.open("w")
    except OSError as error:
        raise UserError(
            f"{folder}: cannot be written ({error.strerror})", "give another folder with -o, or mend its permissions"
        ) from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # A build that ended between the two lines above took the mark away: what is locked then is no longer there.
            if not mark.exists() or not os.path.samestat(os.fstat(lock.fileno()), mark.stat()):
                raise BlockingIOError
        except BlockingIOError:
            raise UserError(
                f"{folder}: another build is writing into it", "wait for it to end, or give another folder with -o"
            ) from None
        _await_orphans(folder)
        # The manifest goes first: without it the rest does not look like a finished build.
        (folder / MANIFEST_NAME).unlink(missing_ok=True)
        sync_folder(folder)
        for name in (*_MADE_AGAIN, *_UNFINISHED):
            _remove(folder / name)
        _bring_back(folder)
        yield
        _clear_marks(folder)


@contextmanager
def at_work(folder: Path) -> Iterator[None]:
    """Tells whoever claims the folder next that this process may still write into it. The claim made the mark: where it is gone, the build has ended
    without this process, which was slow to start, and nothing is left behind in a finished folder.
    """
    try:
        lock = (folder / _WORK).open("r+")
    except FileNotFoundError:
        yield
        return
    with lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        yield


def set_aside(folder: Path, names: Sequence[str]) -> None:
    """Takes what does not belong to a finished folder out of it in one step; it is gone when the claim ends, and back if the build is killed first."""
    (folder / _ASIDE).mkdir(exist_ok=True)
    for name in names:
        if (folder / name).exists():
            (folder / name).rename(folder / _ASIDE / name)
    sync_folder(folder)


def settle(folder: Path) -> None:
    """Takes away the marks of a build that was killed when it was all but done; leaves them where a build is at work or the folder is read-only."""
    with suppress(OSError), (folder / _CLAIM).open("r") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if (folder / MANIFEST_NAME).is_file():
            _clear_marks(folder)


def keep_only(folder: Path, names: Container[str]) -> None:
    """Removes from a folder of packer's everything but these."""
    if folder.is_dir():
        for entry in folder.iterdir():
            if entry.name not in names:
                _remove(entry)


def _refuse_strangers(folder: Path) -> None:
    ours = (*_KEPT, *_MADE_AGAIN, *_UNFINISHED, *_MARKS, MANIFEST_NAME)
    strangers = sorted(entry.name for entry in folder.iterdir() if entry.name not in ours)
    finished, begun = (folder / MANIFEST_NAME).exists(), (folder / _CLAIM).exists()
    if strangers or (any(folder.iterdir()) and not finished and not begun):
        what = strangers[0] if strangers else next(folder.iterdir()).name
        raise UserError(
            f"{folder}: holds {what!r}, which packer did not write", "give an empty or a new folder with -o"
        )


def _await_orphans(folder: Path) -> None:
    """Waits for the workers of a killed build to end: one of them might still put a part of other tokens in the place of ours."""
    deadline = time.monotonic() + _SECONDS_FOR_ORPHANS
    with (folder / _WORK).open("w") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise UserError(
                        f"{folder}: worker processes of an earlier build are still writing into it",
                        "end them, and run the same command again",
                    ) from None
                time.sleep(0.1)
            else:
                return


def _bring_back(folder: Path) -> None:
    aside = folder / _ASIDE
    if aside.is_dir():
        for entry in aside.iterdir():
            _remove(folder / entry.name)
            entry.rename(folder / entry.name)
        aside.rmdir()


def _clear_marks(folder: Path) -> None:
    for name in (_ASIDE, _WORK, _CLAIM):
        _remove(folder / name)


def _remove(entry: Path) -> None:
    if entry.is_dir() and not entry.is_symlink():
        shutil.rmtree(entry)
    else:
        entry.unlink(missing_ok=True)
