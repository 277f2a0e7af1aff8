"""What a run says: lines on standard output, from rank 0 alone. Nobody need be listening.

say = printer(ranks)
say("steps", "100 steps of 8 rows")
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Callable

from packer.console import printable
from trainer.ranks import Ranks

Say = Callable[[str, str], None]


def printer(ranks: Ranks, *, quiet: bool = False) -> Say:
    """Prints "label  text" on rank 0; quiet: nothing but notes. Flushed: a log file shows a step when it is made.

    A reader that has gone (`| head`, a closed terminal) or a log on a full disk does not end a run of hours: from then on lines go nowhere, which is
    said once on standard error.
    """

    def say(label: str, text: str) -> None:
        if not ranks.first or (quiet and label != "note"):
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


def let_libraries_speak() -> None:
    """What transformers, and others that use Python's logging, have to say of what they do, on standard error, and not only their warnings."""
    from transformers.utils import logging as of_transformers

    logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
    of_transformers.set_verbosity_info()  # type: ignore[no-untyped-call]  # untyped in transformers


def _to_nowhere() -> None:
    """The descriptor too where there is one: what is still buffered is flushed to it when the interpreter ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
        return
    sys.stdout = os.fdopen(nowhere, "w")
