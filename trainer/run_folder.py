"""A run's folder: made, held by one run at a time, and its config.toml. Knows nothing of torch.

with held(Path("runs/first")): ...
read_options(Path("runs/first")).steps
"""

from __future__ import annotations

import errno
import fcntl
import os
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from packer.console import to_toml
from packer.errors import UserError
from packer.files import write_text
from trainer.config import RunConfig

OPTIONS = "config.toml"


def check_folder(folder: Path) -> None:
    """Raises UserError where the folder could not be made or written; makes nothing."""
    there = folder
    while not there.exists() and there != there.parent:
        there = there.parent
    if not there.is_dir():
        raise UserError(f"{folder}: cannot be written ({there} is not a folder)", "give another --out")
    if not os.access(there, os.W_OK | os.X_OK):
        raise UserError(f"{folder}: cannot be written (no permission in {there})", "give another --out")


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Makes the folder and holds it while inside; raises UserError where it cannot be written or another run holds it.

    The lock is the system's, on the folder itself: it ends with the process, however that ends, and leaves no file behind.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise UserError(f"{folder}: cannot be written ({error.strerror})", "give another --out") from None
    try:
        check_folder(folder)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                # Some network file systems know no locks: a run there is not refused for it.
                note = f"{folder} cannot be locked ({error.strerror}): take care that no other run writes there"
                print(f"note    {note}", file=sys.stderr, flush=True)
            else:
                raise UserError(
                    f"{folder}: another run is writing here",
                    "wait for it or stop it, or give this run another --out",
                ) from None
        yield
    finally:
        os.close(descriptor)


def write_options(folder: Path, config: RunConfig) -> None:
    """config.toml, without --resume: that says how this run came about, not what it is."""
    options = {name: value for name, value in config.options().items() if name != "resume"}
    try:
        write_text(folder / OPTIONS, to_toml(options))
    except OSError as error:
        raise UserError(f"{folder}: cannot be written ({error.strerror})", "give another --out") from None


def read_options(folder: Path) -> RunConfig:
    """The options that the last part of a run was made with; raises UserError where the folder is not a run's."""
    path = folder / OPTIONS
    try:
        document: dict[str, object] = tomllib.loads(path.read_text(encoding="utf-8"))
        values = {name: tuple(value) if isinstance(value, list) else value for name, value in document.items()}
        return RunConfig(**values)  # type: ignore[arg-type]  # it checks them
    except OSError as error:
        raise UserError(
            f"{path}: cannot be read ({error.strerror})", "give a run's folder, the --out of `trainer run`"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, TypeError) as error:
        raise UserError(f"{path}: not a run's options ({error})", "restore the file") from None
