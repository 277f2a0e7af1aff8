"""Standard error when nobody listens any more: what cannot be told is not told, and what was being done goes on to its own end and status.

    sys.stderr = Unheard(sys.stderr)

A pipe that was closed would otherwise end a build with the status of the pipe. On standard output that is right where there is only something to read;
where there is a verdict too, what tells it is told in `cut_short`.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import TextIO


@contextlib.contextmanager
def cut_short() -> Iterator[None]:
    """A reader of standard output that leaves (head, less) ends what is printed inside, and nothing else: the verdict is the status all the same.

    >>> with cut_short():
    ...     print("two rules are broken")
    two rules are broken
    """
    try:
        yield
    except BrokenPipeError:
        _lead_nowhere(sys.stdout)


def _lead_nowhere(stream: TextIO) -> None:
    """The descriptor leads nowhere from now on, for what is buffered already and for what other code writes to it."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


class Unheard:
    """A text stream whose reader may leave. All but writing is the stream's own."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Writes, or drops what nobody can read."""
        try:
            return self._stream.write(text)
        except OSError:
            _lead_nowhere(self._stream)
            return len(text)

    def flush(self) -> None:
        """Flushes, or drops what nobody can read."""
        try:
            self._stream.flush()
        except OSError:
            _lead_nowhere(self._stream)

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)
