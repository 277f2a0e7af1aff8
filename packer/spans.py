"""From places in the text to places among the tokens, for many texts at once.

Byte-level BPE: the bytes of a token follow from its id, so one running sum over a whole slice gives every token's place, and one binary search all
spans. Where the sum is not the text's length (a normalizer changed it), or the vocabulary is of another kind, offsets are asked for, text by text.

    spans = token_spans(tokenizer, texts, turns, flat)
    spans.first, spans.last                     # in units of flat.ids
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from packer.encoders import Flat
from packer.tokenizer import Encoded, Tokenizer
from packer.turns import Turn
from packer.types import BoolArray, Int32Array, Int64Array


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenSpans:
    """One entry a turn: text int64 [m] (which text it belongs to, ascending), first and last int64 [m]: its tokens are flat.ids[first:last].

    A token across the seam, which begins before the turn and ends in it, is the turn's: the model has to write it. across bool [m]: whether the first
    token is one. A token that ends behind the turn is left out.
    """

    text: Int64Array
    first: Int64Array
    last: Int64Array
    across: BoolArray


def token_spans(tokenizer: Tokenizer, texts: Sequence[str], turns: Sequence[Sequence[Turn]], flat: Flat) -> TokenSpans:
    """The tokens of every turn of every text; turns of a text in order and apart."""
    text_of = np.repeat(np.arange(len(texts)), [len(one) for one in turns])
    bounds = np.array([turn[:2] for one in turns for turn in one], dtype=np.int64).reshape(-1, 2)
    if tokenizer.byte_lengths is None:
        exact = np.zeros(len(texts), dtype=bool)
        ends = np.zeros(len(flat.ids) + 1, dtype=np.int64)
    else:
        ends = np.concatenate([[0], np.cumsum(tokenizer.byte_lengths[flat.ids])])
        of_text = ends[flat.offsets[1:]] - ends[flat.offsets[:-1]]
        sizes = np.array([len(text) if text.isascii() else len(text.encode()) for text in texts], dtype=np.int64)
        exact = (of_text == sizes) & np.array([tokenizer.byte_lengths_fit(text) for text in texts], dtype=bool)
    at = 0
    for number, (text, its_turns) in enumerate(zip(texts, turns, strict=True)):
        if its_turns and exact[number] and not text.isascii():
            bounds[at : at + len(its_turns)] = _in_bytes(text, its_turns)
        at += len(its_turns)
    base = ends[flat.offsets[:-1]][text_of] if len(texts) else np.zeros(0, dtype=np.int64)
    starts = base + bounds[:, 0]
    first = np.searchsorted(ends[1:], starts, side="right")
    across = ends[first] < starts
    last = np.searchsorted(ends[1:], base + bounds[:, 1], side="right")
    for number in np.flatnonzero(~exact).tolist():
        mine = text_of == number
        spans = spans_of(tokenizer, tokenizer.place(texts[number]), turns[number])
        first[mine] = flat.offsets[number] + spans.first
        last[mine] = flat.offsets[number] + spans.last
        across[mine] = spans.across
    return _without_added(text_of, first, last, across, flat.ids, tokenizer)


def _without_added(
    text: Int64Array, first: Int64Array, last: Int64Array, across: BoolArray, ids: Int32Array, tokenizer: Tokenizer
) -> TokenSpans:
    """Spans from which tokens across the seam are taken that only swallow the white space behind them, and are the template's all the same."""
    if across.any():
        swallowed = across & np.isin(ids[np.minimum(first, len(ids) - 1)], tokenizer.swallows_behind)
        first, across = first + swallowed, across & ~swallowed
    return TokenSpans(text=text, first=first, last=np.maximum(first, last), across=across & (first < last))


def _in_bytes(text: str, turns: Sequence[Turn]) -> list[tuple[int, int]]:
    """Turns in order and apart, counted in UTF-8; each character is looked at once."""
    places = []
    size = before = 0
    for turn in turns:
        start = size + len(text[before : turn.start].encode())
        size = start + len(text[turn.start : turn.end].encode())
        before = turn.end
        places.append((start, size))
    return places


def spans_of(tokenizer: Tokenizer, encoded: Encoded, turns: Sequence[Turn]) -> TokenSpans:
    """The tokens of each turn of one text, counted from its first token."""
    bounds = np.array([turn[:2] for turn in turns], dtype=np.int64).reshape(-1, 2)
    first = np.searchsorted(encoded.ends, bounds[:, 0], side="right")
    last = np.searchsorted(encoded.ends, bounds[:, 1], side="right")
    across = np.append(encoded.starts, np.iinfo(np.int64).max)[first] < bounds[:, 0]
    return _without_added(np.zeros(len(turns), dtype=np.int64), first, last, across, encoded.ids, tokenizer)
