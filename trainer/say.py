"""What a run says: lines on standard output, from rank 0 alone. Nobody need be listening.

say = printer(ranks)
say("steps", "100 steps of 8 rows")
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable

from packer.console import printable
from trainer.ranks import Ranks

Say = Callable[[str, str], None]


def printer(ranks: Ranks) -> Say:
    """Prints "label  text" on rank 0. Flushed: a log file shows a step when it is made.

    A reader that has gone (`| head`, a closed terminal) or a log on a full disk does not end a run of hours: from then on lines go nowhere, which is
    said once on standard error.
    """

    def say(label: str, text: str) -> None:
        if not ranks.first:
            return
        try:
            print(f"{label:<7} {printable(text)}" if label else printable(text), flush=True)
        except (OSError, ValueError) as error:  # ValueError: it was closed in this process
            _to_nowhere()
            with contextlib.suppress(OSError, ValueError):
                print(
                    f"note: standard output is lost ({error}); the run goes on, metrics.jsonl has its steps",
                    file=sys.stderr,
                    flush=True,
                )

    return say


def _to_nowhere() -> None:
    """The descriptor too where there is one: what is still buffered is flushed to it when the interpreter ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
        return
    sys.stdout = os.fdopen(nowhere, "w")
