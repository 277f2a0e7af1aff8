"""What reading, encoding and a step cost, in counts that no slow machine can change: bytes copied, files opened, texts encoded, operations, tokens projected.

A count that grows is a regression that a timed test would show only now and then; each bound is a little above what is there.
"""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import pytest

import packer
from packer.config import BuildConfig
from packer.encoders import Flat, Reference
from packer.tokens import TokenStore
from tests.support import SAMPLE, TINY

CAPACITY = 4096


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("costs") / "packed"
    packer.build(BuildConfig(datasets=(str(SAMPLE),), tokenizer=str(TINY), capacity=CAPACITY, out=out))
    return out


def test_a_row_that_is_read_takes_a_mask_and_no_copy_of_anything_else(packed: Path) -> None:
    corpus = packer.open(packed)
    corpus[1]
    tracemalloc.start()
    row = corpus[0]
    held, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # Beside the mask: views and the tuple. The ids alone would be 16 KB.
    assert row.loss_mask.nbytes == CAPACITY
    assert held < CAPACITY + 1800
    assert peak < 3 * CAPACITY


_opened: list[str] | None = None


def _note_opening(event: str, arguments: tuple[object, ...]) -> None:
    if event == "open" and _opened is not None:
        _opened.append(str(arguments[0]))


sys.addaudithook(_note_opening)


def test_opening_a_folder_opens_its_manifest_alone(packed: Path) -> None:
    global _opened  # noqa: PLW0603  # a hook cannot be taken off again
    _opened = []
    try:
        corpus = packer.open(packed)
        opened = [name for name in _opened if str(packed) in name]
    finally:
        _opened = None
    assert len(corpus) > 10
    assert [Path(name).name for name in opened] == ["manifest.json"]


def test_each_text_is_encoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The encoder is most of a build: what it makes in all may be what is stored, and a probe conversation or two."""
    made = 0
    encode = Reference.encode

    def counted(self: Reference, texts: Sequence[str]) -> Flat:
        nonlocal made
        flat = encode(self, texts)
        made += len(flat.ids)
        return flat

    monkeypatch.setattr(Reference, "encode", counted)
    out = tmp_path / "packed"
    packer.build(
        BuildConfig(datasets=(str(SAMPLE),), tokenizer=str(TINY), capacity=CAPACITY, out=out, encoder="tokenizers")
    )
    stored = sum(len(part.ids) for part in TokenStore(out / "tokens").parts)
    assert stored <= made <= stored + 2000
