"""Tokens as text again, for the eye: by the tokenizer that lies in the folder of packed shards, or as ids where there is none.

decoder = open_decoder(corpus)
excerpt(decoder, row.input_ids[start:end], row.loss_mask[start:end], characters=72)      # "Sure! Here is … all the best.<|im_end|> ┊ You are welcome"

What comes out is text of the data: it is escaped (`packer.console.printable`) where it is shown.
"""

from __future__ import annotations

from typing import Protocol, cast

import numpy as np

from packer.shards import Corpus
from packer.types import BoolArray, Int32Array


class Decoder(Protocol):
    """What is asked of a tokenizer."""

    def decode(self, ids: list[int], *, skip_special_tokens: bool) -> str: ...


def open_decoder(corpus: Corpus) -> Decoder | None:
    """The tokenizer of a folder (or address) of shards; None where it has none."""
    file = corpus.fetch("tokenizer") / "tokenizer.json"
    if not file.is_file():
        return None
    from transformers import PreTrainedTokenizerFast

    made = PreTrainedTokenizerFast(tokenizer_file=str(file), clean_up_tokenization_spaces=False)  # type: ignore[no-untyped-call]  # untyped in transformers
    return cast(Decoder, made)


def stretches(mask: BoolArray) -> list[tuple[int, int]]:
    """[start, end) of each run of targets."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], mask.astype(np.int8), [0]])))
    return [(int(low), int(high)) for low, high in edges.reshape(-1, 2)]


def shown(decoder: Decoder | None, ids: Int32Array, *, characters: int) -> str:
    """The text of some ids, its middle left out where it is long; the ids themselves where there is no tokenizer."""
    if decoder is None:
        text = " ".join(map(str, ids[: characters // 4].tolist()))
    else:
        text = decoder.decode(ids.tolist(), skip_special_tokens=False)
    half = characters // 2
    return text if len(text) <= characters else f"{text[:half]} … {text[-half:]}"


def excerpt(decoder: Decoder | None, ids: Int32Array, mask: BoolArray, *, characters: int) -> str:
    """What an example's targets say, its stretches one behind the other, cut to so many characters."""
    parts, left = [], characters
    for low, high in stretches(mask):
        if left <= 0:
            parts.append("…")
            break
        parts.append(shown(decoder, ids[low:high], characters=left))
        left -= len(parts[-1])
    return " ┊ ".join(parts)
