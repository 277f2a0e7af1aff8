"""Tokens as a person can point at them: each with its text, and those that only together make a character as one.

units(tokenizer, row.input_ids, start, end)     # [Unit(text="Hel", ids=(9906,)), …]
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from packer.tokenizer import Tokenizer
from packer.types import Int32Array

_BROKEN = "\ufffd"
# A character has at most 4 bytes, and a token at least one.
_MOST_TOKENS = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Unit:
    """A token and its text, or the tokens of one character that is spread over several."""

    text: str
    ids: tuple[int, ...]


def units(tokenizer: Tokenizer, ids: Int32Array, start: int, end: int) -> Iterator[Unit]:
    """Tokens [start, end) of an example's ids [n], in order, each in exactly one unit."""
    at = start
    while at < end:
        text, size = _text(tokenizer, ids, at, at + 1), 1
        if _BROKEN in text:
            texts = [_text(tokenizer, ids, at, to) for to in range(at + 1, min(at + _MOST_TOKENS, end) + 1)]
            size = _whole(tokenizer, ids, at, texts)
            text = texts[size - 1]
        yield Unit(text=text, ids=tuple(ids[at : at + size].tolist()))
        at += size


def _whole(tokenizer: Tokenizer, ids: Int32Array, at: int, texts: list[str]) -> int:
    """How many tokens from `at` on make whole characters, the fewest; 1 where none do. texts: of 1, 2, … tokens."""
    for size, text in enumerate(texts, start=1):
        if _BROKEN not in text:
            return size
    if tokenizer.byte_lengths is not None:
        # The sign for a broken character may stand in the data: it has as many bytes as its tokens.
        for size, text in enumerate(texts, start=1):
            if len(text.encode()) == int(tokenizer.byte_lengths[ids[at : at + size]].sum()):
                return size
    return 1


def _text(tokenizer: Tokenizer, ids: Int32Array, start: int, end: int) -> str:
    """A byte-level decoder knows no context; others write a token's leading space only behind another token."""
    if end == start + 1 and (added := tokenizer.added_tokens.get(int(ids[start]))) is not None:
        return added
    run = ids[start:end].tolist()
    if tokenizer.byte_lengths is not None or not start:
        return tokenizer.decode(run)
    before = ids[start - 1 : start].tolist()
    alone, both = tokenizer.decode(before), tokenizer.decode([*before, *run])
    return both[len(alone) :] if both.startswith(alone) else tokenizer.decode(run)
