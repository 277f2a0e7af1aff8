"""How far a turn's targets reach among the tokens, and their weights in the loss."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from packer.encoders import Flat
from packer.spans import TokenSpans
from packer.turns import Rendered
from packer.types import BoolArray, Float32Array, Float64Array, Int32Array, Int64Array


def through_closers(
    flat: Flat, spans: TokenSpans, closers: Sequence[tuple[BoolArray, Sequence[int]]]
) -> tuple[Int64Array, BoolArray]:
    """Each turn stretched through the first closer behind it, with what the model writes before that (tool calls); and which have none.

    closers: which of the texts end their turns with which ids; texts of none of them (plain text, generation tags) are left as they are.
    """
    last, unclosed = spans.last.copy(), np.zeros(len(spans.last), dtype=bool)
    if not len(last):
        return last, unclosed
    limit = flat.offsets[1:][spans.text]
    same = spans.text[1:] == spans.text[:-1]
    # The next turn of the same text, or the text's end, is as far as a turn can reach.
    limit[:-1] = np.where(same, spans.first[1:], limit[:-1])
    for texts, ids in closers:
        its = texts[spans.text]
        places = np.append(np.flatnonzero(np.isin(flat.ids, ids)), len(flat.ids))
        closing = places[np.searchsorted(places, spans.last)]
        unclosed |= its & (closing >= limit)
        last = np.where(its & (closing < limit), closing + 1, last)
    return last, unclosed


def token_weights(mask: BoolArray, weights: Float64Array, first: Int64Array, last: Int64Array) -> Float32Array | None:
    """The loss weight of every target, float32 [n]; None where all are 1."""
    if ((weights == 0) | (weights == 1)).all():
        return None
    of_token = np.ones(len(mask), dtype=np.float32)
    for weight, start, end in zip(weights.tolist(), first.tolist(), last.tolist(), strict=True):
        of_token[start:end] = weight
    return np.where(mask, of_token, np.float32(0))


def cut_points(rendered: Rendered, ends: Int64Array, *, length: int, is_chat: bool) -> Int32Array:
    """Where an example of `length` tokens may be cut, behind its turns: int32 [turns]. None for a document, and for it alone: it is nothing but text
    and may be cut anywhere. A chat without a turn of the assistant (`--train-on all`) has its end."""
    if not is_chat and not rendered.turns[0].start:
        return np.zeros(0, dtype=np.int32)
    return (ends if len(ends) else np.array([length])).astype(np.int32)
