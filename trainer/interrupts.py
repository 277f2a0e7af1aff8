"""Ctrl-C, SIGTERM and a closed terminal (SIGHUP) as a wish to stop: noted at once, acted on between two steps, so that a checkpoint can be saved first.

with Interrupts() as interrupts:
    while not interrupts.signal: ...
"""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType, TracebackType

# torchrun passes Ctrl-C on to ranks that the terminal has already told: within this time a second signal is the same wish.
_SAME_WISH_S = 2.0


class Interrupts:
    """`signal` is 0, or the number of the signal that came. A second Ctrl-C, two seconds later, ends the process without saving."""

    def __init__(self) -> None:
        self.signal = 0
        self._since = 0.0
        self._before: dict[int, object] = {}

    def __enter__(self) -> Interrupts:
        # Only the main thread may set handlers; a run started from another one keeps its program's.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                # Under nohup a closed terminal is to be ignored, and stays so.
                if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
                    continue
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # what signal.signal returned

    def _note(self, number: int, _frame: FrameType | None) -> None:
        now = time.monotonic()
        if not self.signal:
            self.signal, self._since = number, now
        elif number == signal.SIGINT and now - self._since > _SAME_WISH_S:
            raise KeyboardInterrupt
