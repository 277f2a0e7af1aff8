"""Digests: xxh3-128 as 32 hex digits. They notice accidents (a flipped bit, another template), not forgery."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import xxhash

_BLOCK_BYTES = 1 << 20


def digest_file(path: Path) -> str:
    """xxh3-128 of a file's bytes, read once in blocks of 1 MiB."""
    state = xxhash.xxh3_128()
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            state.update(block)
    return state.hexdigest()


def digest_files(files: Iterable[Path]) -> str:
    """xxh3-128 of files by name and content, in the order given, and of nothing else (not of where they lie)."""
    return digest_words(word for file in files for word in (file.name, digest_file(file)))


def digest_words(words: Iterable[str | int]) -> str:
    """xxh3-128 of a list of words, each closed by a zero byte so that ("ab", "c") and ("a", "bc") differ."""
    state = xxhash.xxh3_128()
    for word in words:
        state.update(str(word).encode())
        state.update(b"\0")
    return state.hexdigest()
