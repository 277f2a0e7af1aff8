"""Encoders that tell on themselves, for tests: importable by worker processes."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import packer.pipeline
from packer.encode import EncodedSlice, EncodeSettings, RawSlice, make_slice_encoder
from packer.progress import Progress


def make_spying_encoder(settings: EncodeSettings) -> Callable[[RawSlice], EncodedSlice]:
    """Encodes as usual and then writes the names of this process's modules to a file."""
    encode = make_slice_encoder(settings)

    def spy(raw: RawSlice) -> EncodedSlice:
        encoded = encode(raw)
        (Path(os.environ["SPY_FOLDER"]) / f"worker-{os.getpid()}.json").write_text(json.dumps(sorted(sys.modules)))
        return encoded

    return spy


def make_dying_encoder(settings: EncodeSettings) -> Callable[[RawSlice], EncodedSlice]:
    """Dies hard at the second slice, as a process does that the kernel kills for its memory."""
    encode = make_slice_encoder(settings)

    def die(raw: RawSlice) -> EncodedSlice:
        if raw.rows[0].number:
            os.kill(os.getpid(), signal.SIGKILL)
        return encode(raw)

    return die


def install() -> Progress:
    """Makes the next build use the spying encoder."""
    packer.pipeline.make_slice_encoder = make_spying_encoder  # type: ignore[attr-defined]
    return Progress()
