"""Standard error when nobody listens any more: what cannot be told is not told, and what was being done goes on to its own end and status.

    sys.stderr = Unheard(sys.stderr)

A pipe that was closed would otherwise end a build with the status of the pipe.
"""

from __future__ import annotations

import contextlib
import os
from typing import TextIO


class Unheard:
    """A text stream whose reader may leave. All but writing is the stream's own."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Writes, or drops what nobody can read."""
        try:
            return self._stream.write(text)
        except OSError:
            self._give_up()
            return len(text)

    def flush(self) -> None:
        """Flushes, or drops what nobody can read."""
        try:
            self._stream.flush()
        except OSError:
            self._give_up()

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)

    def _give_up(self) -> None:
        """The descriptor leads nowhere from now on, for what is buffered already and for what other code writes to it."""
        with contextlib.suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)
