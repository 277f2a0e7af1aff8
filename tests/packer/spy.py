"""Part writers that tell on themselves, for tests: importable by worker processes."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import packer.pipeline
from packer.encode import EncodeSettings, make_part_writer
from packer.encoders import EncoderDiffersError
from packer.parts import RawPart
from packer.progress import Progress
from packer.token_part import part_name, read_part, write_part


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


def make_lying_writer(settings: EncodeSettings) -> Callable[[RawPart], int]:
    """A fast encoder that is caught at the second part, while another worker takes its time over a part of wrong ids."""
    write = make_part_writer(settings)
    if settings.encoder == "tokenizers":
        return write

    def lie(raw: RawPart) -> int:
        if raw.number == 1:
            raise EncoderDiffersError("splintr differs from tokenizers on 'x'")
        number = write(raw)
        path = settings.folder / part_name(number)
        head, part = read_part(path)
        wrong = replace(part, ids=part.ids + 1)
        time.sleep(1.5)
        write_part(path, replace(head, digest=wrong.digest()), wrong)
        return number

    return lie


def install() -> Progress:
    """Makes the next build use the spying writer."""
    packer.pipeline.make_part_writer = make_spying_writer  # type: ignore[attr-defined]
    return Progress()
