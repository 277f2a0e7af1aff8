"""Part writers that tell on themselves, for tests: importable by worker processes."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import packer.pipeline
from packer.encode import EncodeSettings, make_part_writer
from packer.parts import RawPart
from packer.progress import Progress


def make_spying_writer(settings: EncodeSettings) -> Callable[[RawPart], int]:
    """Writes parts as usual and then the names of this process's modules to a file."""
    write = make_part_writer(settings)

    def spy(raw: RawPart) -> int:
        number = write(raw)
        (Path(os.environ["SPY_FOLDER"]) / f"worker-{os.getpid()}.json").write_text(json.dumps(sorted(sys.modules)))
        return number

    return spy


def make_dying_writer(settings: EncodeSettings) -> Callable[[RawPart], int]:
    """Dies hard at the second part, as a process does that the kernel kills for its memory."""
    write = make_part_writer(settings)

    def die(raw: RawPart) -> int:
        if raw.first_row:
            os.kill(os.getpid(), signal.SIGKILL)
        return write(raw)

    return die


def install() -> Progress:
    """Makes the next build use the spying writer."""
    packer.pipeline.make_part_writer = make_spying_writer  # type: ignore[attr-defined]
    return Progress()
